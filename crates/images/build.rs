//! Builds the unpacker, which the crate embeds.

fn main() {
    embed::StaticProgram {
        package: "sandbar-unpack",
        sources: &["crates/unpack", "crates/launcher"],
        prebuilt: "SANDBAR_UNPACK",
        image: "SANDBAR_UNPACK_IMAGE",
    }
    .build();
}
