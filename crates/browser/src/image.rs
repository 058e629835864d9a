//! Image limits of model providers, and detection of blank images.

use std::io::Cursor;

use image_webp::WebPDecoder;

/// Providers scale down longer images, each in its own way.
pub(crate) const MAX_SIDE: f64 = 1568.0;
/// 3.75 MiB: five megabytes as base64.
pub(crate) const MAX_BYTES: usize = 3_932_160;
/// Text is unreadable below this scale; a page that would need less is cut at the bottom.
const MIN_SCALE: f64 = 0.25;
/// Encoders add noise even to a uniform area.
const COLOUR_TOLERANCE: u8 = 6;

/// The part of a page to capture, and its scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Clip {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) scale: f64,
    /// The page continues below.
    pub(crate) is_cut: bool,
}

impl Clip {
    /// A clip for a whole page of this size.
    pub(crate) fn for_size(width: f64, height: f64) -> Self {
        let width = width.clamp(1.0, MAX_SIDE / MIN_SCALE);
        let tallest = MAX_SIDE / MIN_SCALE;
        let (height, is_cut) = if height > tallest { (tallest, true) } else { (height.max(1.0), false) };
        Self { width, height, scale: (MAX_SIDE / width.max(height)).min(1.0), is_cut }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageInfo {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// The image has a single colour.
    pub(crate) blank: bool,
}

/// Decodes an image; `None` if it is not WebP.
pub(crate) fn inspect(webp: &[u8]) -> Option<ImageInfo> {
    let mut decoder = WebPDecoder::new(Cursor::new(webp)).ok()?;
    let (width, height) = decoder.dimensions();
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let mut pixels = vec![0; decoder.output_buffer_size()?];
    decoder.read_image(&mut pixels).ok()?;
    let (first, rest) = pixels.split_at_checked(channels)?;
    let blank = rest
        .chunks_exact(channels)
        .all(|pixel| pixel.iter().zip(first).all(|(value, wanted)| value.abs_diff(*wanted) <= COLOUR_TOLERANCE));
    Some(ImageInfo { width, height, blank })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clip_never_exceeds_the_maximum_side() {
        for (width, height) in [(1280.0, 800.0), (1280.0, 3000.0), (390.0, 100_000.0), (9000.0, 10.0), (0.0, 0.0)] {
            let clip = Clip::for_size(width, height);
            assert!(clip.width.max(clip.height) * clip.scale <= MAX_SIDE + 0.01, "{clip:?}");
            assert!(clip.scale >= MIN_SCALE && clip.scale <= 1.0, "{clip:?}");
            assert_eq!(clip.is_cut, height > 6272.0, "{clip:?}");
        }
        assert_eq!(Clip::for_size(1280.0, 800.0).scale, 1.0);
    }

    #[test]
    fn blank_images_are_detected() {
        let encode = |paint: &dyn Fn(usize) -> u8| {
            let mut webp = Vec::new();
            let pixels: Vec<u8> = (0..40 * 30).flat_map(|index| [paint(index); 3]).collect();
            image_webp::WebPEncoder::new(&mut webp)
                .encode(&pixels, 40, 30, image_webp::ColorType::Rgb8)
                .expect("an encodable image");
            inspect(&webp).expect("a WebP image")
        };
        assert_eq!(encode(&|_| 255), ImageInfo { width: 40, height: 30, blank: true });
        assert!(!encode(&|index| if index == 700 { 0 } else { 255 }).blank);
        assert_eq!(inspect(b"<html>"), None);
    }
}
