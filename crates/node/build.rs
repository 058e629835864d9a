//! Builds the guest, which the crate embeds.

fn main() {
    embed::StaticProgram {
        package: "sandbar-guest",
        sources: &["crates/guest", "crates/protocol"],
        prebuilt: "SANDBAR_GUEST",
        image: "SANDBAR_GUEST_IMAGE",
    }
    .build();
}
