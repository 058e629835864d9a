//! Builds the search helper, which the crate embeds.

fn main() {
    embed::StaticProgram {
        package: "sandbar-sandbox-helper",
        sources: &["crates/sandbox-helper"],
        prebuilt: "SANDBAR_SANDBOX_HELPER",
        image: "SANDBAR_SANDBOX_HELPER_IMAGE",
    }
    .build();
}
