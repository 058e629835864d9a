//! One contract for all dispatchers: the same cases in memory, on our server, and on our server
//! without its extensions to E2B's protocol. Searches also run without ripgrep.

mod bash;
mod edit_file;
mod fixture;
mod golden;
mod read_file;
mod search;
mod sessions;
mod take_screenshot;
mod write_file;

/// Creates a test for each case on each backend.
macro_rules! contract {
    (in [$($backend:ident),+]: $cases:tt) => {
        $( crate::contract!(@backend $backend $cases); )+
    };
    (@backend $backend:ident [$($case:ident),+ $(,)?]) => {
        mod $backend {
            $(
                #[tokio::test]
                async fn $case() {
                    let fixture = crate::fixture::Fixture::$backend().await;
                    super::$case(&fixture).await;
                    fixture.end().await;
                }
            )+
        }
    };
}
pub(crate) use contract;
