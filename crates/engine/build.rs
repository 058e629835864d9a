//! Builds the launcher, which the crate embeds.

fn main() {
    embed::StaticProgram {
        package: "sandbar-launcher",
        sources: &["crates/launcher"],
        prebuilt: "SANDBAR_LAUNCHER",
        image: "SANDBAR_LAUNCHER_IMAGE",
    }
    .build();
}
