//! What models accept as a picture, and whether there is anything on it.

use std::io::Cursor;

use image_webp::WebPDecoder;

/// Providers shrink what is longer, each in its own way.
pub(crate) const LONGEST_SIDE: f64 = 1568.0;
/// 3.75 MiB: five megabytes once encoded as base64.
pub(crate) const MOST_BYTES: usize = 3_932_160;
/// Below this a page is only a smear; what would need it is cut at its end.
const SMALLEST_SCALE: f64 = 0.25;
/// Encoders leave a trace of noise even on an even area.
const SAME_COLOUR: u8 = 6;

/// What of a page is taken, and how much smaller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Clip {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) scale: f64,
    /// The page goes on below.
    pub(crate) is_cut: bool,
}

impl Clip {
    /// The whole of a page of this size.
    pub(crate) fn of(width: f64, height: f64) -> Self {
        let width = width.clamp(1.0, LONGEST_SIDE / SMALLEST_SCALE);
        let tallest = LONGEST_SIDE / SMALLEST_SCALE;
        let (height, is_cut) = if height > tallest { (tallest, true) } else { (height.max(1.0), false) };
        Self { width, height, scale: (LONGEST_SIDE / width.max(height)).min(1.0), is_cut }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// One colour all over.
    pub(crate) blank: bool,
}

/// Decodes a picture; `None` if it is no WebP.
pub(crate) fn look_at(webp: &[u8]) -> Option<Look> {
    let mut decoder = WebPDecoder::new(Cursor::new(webp)).ok()?;
    let (width, height) = decoder.dimensions();
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let mut pixels = vec![0; decoder.output_buffer_size()?];
    decoder.read_image(&mut pixels).ok()?;
    let (first, rest) = pixels.split_at_checked(channels)?;
    let blank = rest
        .chunks_exact(channels)
        .all(|pixel| pixel.iter().zip(first).all(|(value, wanted)| value.abs_diff(*wanted) <= SAME_COLOUR));
    Some(Look { width, height, blank })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clip_never_gives_a_side_that_is_too_long() {
        for (width, height) in [(1280.0, 800.0), (1280.0, 3000.0), (390.0, 100_000.0), (9000.0, 10.0), (0.0, 0.0)] {
            let clip = Clip::of(width, height);
            assert!(clip.width.max(clip.height) * clip.scale <= LONGEST_SIDE + 0.01, "{clip:?}");
            assert!(clip.scale >= SMALLEST_SCALE && clip.scale <= 1.0, "{clip:?}");
            assert_eq!(clip.is_cut, height > 6272.0, "{clip:?}");
        }
        assert_eq!(Clip::of(1280.0, 800.0).scale, 1.0);
    }

    #[test]
    fn even_and_painted_pictures_are_told_apart() {
        let encode = |paint: &dyn Fn(usize) -> u8| {
            let mut webp = Vec::new();
            let pixels: Vec<u8> = (0..40 * 30).flat_map(|index| [paint(index); 3]).collect();
            image_webp::WebPEncoder::new(&mut webp)
                .encode(&pixels, 40, 30, image_webp::ColorType::Rgb8)
                .expect("a picture that can be encoded");
            look_at(&webp).expect("a picture")
        };
        assert_eq!(encode(&|_| 255), Look { width: 40, height: 30, blank: true });
        assert!(!encode(&|index| if index == 700 { 0 } else { 255 }).blank);
        assert_eq!(look_at(b"<html>"), None);
    }
}
