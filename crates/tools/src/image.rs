//! Converts images to what a model accepts.
//!
//! Images come from sandboxes, so decoders run within limits: one at a time in this process, on a
//! blocking thread, with at most [`MAX_DECODED_PIXELS`] pixels and [`MAX_DECODED_BYTES`] bytes of
//! them.

mod format;

use std::io::Cursor;

use ::image::codecs::jpeg::JpegEncoder;
use ::image::codecs::png::PngEncoder;
use ::image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::result::Image;
use format::is_complete;
pub(crate) use format::{describe_binary, kind, size};

/// Limits below which providers accept an image unchanged: longest side, and file size. They scale
/// down larger ones, each in its own way, or refuse them.
pub(crate) const MAX_PIXELS: u32 = 1568;
pub(crate) const MAX_BYTES: usize = 3_932_160;
/// The largest file that is treated as an image.
pub(crate) const MAX_FILE_BYTES: u64 = 32 * 1024 * 1024;
/// Phone cameras produce such images. A progressive JPEG needs nine bytes per pixel while it is
/// decoded.
const MAX_DECODED_PIXELS: u64 = 50_000_000;
const MAX_DECODED_BYTES: u64 = 256 * 1024 * 1024;
/// Tried in this order until the file is small enough.
const JPEG_QUALITIES: [u8; 3] = [85, 60, 30];

/// Decoded images are large: one at a time.
static DECODING: Semaphore = Semaphore::const_new(1);

/// An image as it is sent to a model.
#[derive(Debug)]
pub(crate) struct PreparedImage {
    pub(crate) image: Image,
    /// Size of the image that is sent.
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Size of the file's image.
    pub(crate) original: (u32, u32),
}

/// Prepares an image block, scaled down if needed. Refuses an image that a provider would reject,
/// because it would break the whole conversation.
pub(crate) async fn prepare(kind: &'static str, bytes: &Bytes) -> Result<PreparedImage, String> {
    let bytes = bytes.clone();
    let _turn = DECODING.acquire().await.map_err(|_| "this program ends".to_owned())?;
    let prepared = tokio::task::spawn_blocking(move || prepare_now(kind, &bytes)).await;
    prepared.unwrap_or_else(|_| Err("it is damaged: its decoder failed".into()))
}

fn prepare_now(kind: &'static str, bytes: &Bytes) -> Result<PreparedImage, String> {
    let damaged = |error: ::image::ImageError| format!("it is damaged: {error}");
    let too_many = |width: u32, height: u32| u64::from(width) * u64::from(height) > MAX_DECODED_PIXELS;
    let too_large = |width, height| {
        let millions = MAX_DECODED_PIXELS / 1_000_000;
        format!("it has {width}x{height} pixels, and pictures of more than {millions} million are not decoded")
    };
    match size(kind, bytes) {
        None => return Err("it is damaged: its size cannot be read".into()),
        Some((0, _) | (_, 0)) => return Err("it has no pixels".into()),
        Some((width, height)) if too_many(width, height) => return Err(too_large(width, height)),
        Some(_) => {}
    }
    if !is_complete(kind, bytes) {
        return Err("it is damaged: its end is missing".into());
    }
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format_for(kind));
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_DECODED_BYTES);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    // The decoder may report another size than the header.
    if too_many(width, height) {
        return Err(too_large(width, height));
    }
    if decoder.total_bytes() > MAX_DECODED_BYTES {
        let (needed, most) = (decoder.total_bytes() >> 20, MAX_DECODED_BYTES >> 20);
        return Err(format!("it takes {needed} MiB when it is decoded, and {most} MiB are the most"));
    }
    let orientation = decoder.orientation().map_err(damaged)?;
    let mut decoded = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    if width.max(height) <= MAX_PIXELS && bytes.len() <= MAX_BYTES {
        let image = Image { media_type: kind, bytes: bytes.clone() };
        return Ok(PreparedImage { image, width, height, original: (width, height) });
    }
    if width.max(height) > MAX_PIXELS {
        // Averages areas, without the floating-point copy of the whole image that other filters
        // make.
        decoded = decoded.thumbnail(MAX_PIXELS, MAX_PIXELS);
    }
    // Encoding drops the EXIF orientation.
    decoded.apply_orientation(orientation);
    let image = encode(kind, &decoded)?;
    Ok(PreparedImage { image, width: decoded.width(), height: decoded.height(), original: (width, height) })
}

/// Encodes an image for providers: as PNG if that is small enough and nothing was lost before, else
/// as JPEG.
fn encode(kind: &str, image: &DynamicImage) -> Result<Image, String> {
    let failed = |error: ::image::ImageError| format!("it could not be scaled down: {error}");
    if kind != "image/jpeg" {
        let mut png = Vec::new();
        let eight_bits = if image.color().has_alpha() {
            DynamicImage::from(image.to_rgba8())
        } else {
            DynamicImage::from(image.to_rgb8())
        };
        eight_bits.write_with_encoder(PngEncoder::new(&mut png)).map_err(failed)?;
        if png.len() <= MAX_BYTES {
            return Ok(Image { media_type: "image/png", bytes: png.into() });
        }
    }
    let opaque = on_white(image);
    for quality in JPEG_QUALITIES {
        let mut jpeg = Vec::new();
        opaque.write_with_encoder(JpegEncoder::new_with_quality(&mut jpeg, quality)).map_err(failed)?;
        if jpeg.len() <= MAX_BYTES {
            return Ok(Image { media_type: "image/jpeg", bytes: jpeg.into() });
        }
    }
    Err(format!("no file of at most {MAX_BYTES} bytes can be made of it"))
}

/// JPEG has no transparency, and transparent pixels are often black.
fn on_white(image: &DynamicImage) -> DynamicImage {
    if !image.color().has_alpha() {
        return DynamicImage::from(image.to_rgb8());
    }
    let mut opaque = ::image::RgbImage::new(image.width(), image.height());
    for (pixel, shown) in image.to_rgba8().pixels().zip(opaque.pixels_mut()) {
        let [colour @ .., alpha] = pixel.0;
        let mix = |value: u8| {
            let alpha = u32::from(alpha);
            u8::try_from((u32::from(value) * alpha + 255 * (255 - alpha)) / 255).unwrap_or(u8::MAX)
        };
        shown.0 = colour.map(mix);
    }
    opaque.into()
}

fn format_for(kind: &str) -> ImageFormat {
    match kind {
        "image/jpeg" => ImageFormat::Jpeg,
        "image/gif" => ImageFormat::Gif,
        "image/webp" => ImageFormat::WebP,
        _ => ImageFormat::Png,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(width: u32, height: u32) -> Bytes {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes.extend(b"\x08\x06\0\0\0....\0\0\0\0IEND\xaeB`\x82");
        bytes.into()
    }

    #[test]
    fn image_sizes_come_from_bytes() {
        assert_eq!(size("image/png", &png(3, 4)), Some((3, 4)));
        assert_eq!(size("image/gif", b"GIF89a\x05\0\x06\0"), Some((5, 6)));
        assert_eq!(size("image/jpeg", b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\0\x11\x08\0\x07\0\x09"), Some((9, 7)));
        assert_eq!(size("image/webp", b"RIFF....WEBPVP8X....\0\0\0\0\x04\0\0\x05\0\0"), Some((5, 6)));
        assert_eq!(size("image/jpeg", b"\xff\xd8\xff"), None);
    }

    /// Pixels that no encoder can compress.
    fn noise(width: u32, height: u32) -> DynamicImage {
        let mut state = 1_u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        ::image::RgbaImage::from_fn(width, height, |_, _| ::image::Rgba([next(), next(), next(), 255])).into()
    }

    fn file(image: &DynamicImage, format: ImageFormat) -> Bytes {
        let mut bytes = Cursor::new(Vec::new());
        let image = if format == ImageFormat::Jpeg { &DynamicImage::from(image.to_rgb8()) } else { image };
        image.write_to(&mut bytes, format).expect("it is encoded");
        bytes.into_inner().into()
    }

    #[track_caller]
    fn check_sent(kind: &'static str, bytes: &Bytes, sent: (u32, u32), original: (u32, u32)) -> PreparedImage {
        let image = prepare_now(kind, bytes).expect("an image");
        assert_eq!(((image.width, image.height), image.original), (sent, original), "{kind}");
        let Image { media_type, bytes } = &image.image;
        assert_eq!((self::kind(bytes), size(media_type, bytes)), (Some(*media_type), Some(sent)), "{kind}");
        assert!(bytes.len() <= MAX_BYTES, "{kind}: {}", bytes.len());
        image
    }

    #[test]
    fn acceptable_images_are_sent_unchanged() {
        for (kind, format) in [
            ("image/png", ImageFormat::Png),
            ("image/jpeg", ImageFormat::Jpeg),
            ("image/gif", ImageFormat::Gif),
            ("image/webp", ImageFormat::WebP),
        ] {
            let small = file(&noise(30, 20), format);
            assert_eq!(check_sent(kind, &small, (30, 20), (30, 20)).image.bytes, small, "{kind}");
            let large = file(&DynamicImage::new_rgba8(3000, 750), format);
            check_sent(kind, &large, (1568, 392), (3000, 750));
        }
        let thin = file(&DynamicImage::new_luma16(2, 20_000), ImageFormat::Png);
        check_sent("image/png", &thin, (1, 1568), (2, 20_000));
    }

    #[test]
    fn large_image_file_is_recompressed() {
        let heavy = file(&noise(1200, 1200), ImageFormat::Png);
        assert!(heavy.len() > MAX_BYTES);
        assert_eq!(check_sent("image/png", &heavy, (1200, 1200), (1200, 1200)).image.media_type, "image/jpeg");
    }

    #[test]
    fn lost_transparency_becomes_white() {
        let white = on_white(&DynamicImage::new_rgba8(2, 2)).to_rgb8();
        assert!(white.pixels().all(|pixel| pixel.0 == [255; 3]));
    }

    #[test]
    fn unacceptable_images_never_become_blocks() {
        let refused = |bytes: &Bytes| prepare_now("image/png", bytes).expect_err("no image");
        assert!(refused(&png(10, 10)).contains("damaged"), "its pixels are missing");
        assert!(refused(&png(0, 10)).contains("no pixels"));
        assert!(refused(&png(60_000, 60_000)).contains("60000x60000"));
        let whole = file(&noise(30, 20), ImageFormat::Png);
        assert!(refused(&whole.slice(..whole.len() / 2)).contains("damaged"));
    }
}
