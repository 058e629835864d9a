//! Builds the search helper, which the crate embeds.

fn main() {
    embed::StaticProgram {
        package: "sandbar-search",
        sources: &["crates/search"],
        prebuilt: "SANDBAR_SEARCH",
        image: "SANDBAR_SEARCH_IMAGE",
    }
    .build();
}
