//! One contract for all dispatchers: the same cases in memory, on our server, and on our server with everything beyond E2B's
//! own protocol switched off. Searches also run where ripgrep is missing.

mod editing;
mod moving;
mod reading;
mod running;
mod searching;
mod seeing;
mod sharing;
mod world;
mod writing;

/// Makes a test of each case in each world.
macro_rules! contract {
    (in [$($world:ident),+]: $cases:tt) => {
        $( crate::contract!(@world $world $cases); )+
    };
    (@world $world:ident [$($case:ident),+ $(,)?]) => {
        mod $world {
            $(
                #[tokio::test]
                async fn $case() {
                    let world = crate::world::World::$world().await;
                    super::$case(&world).await;
                    world.end().await;
                }
            )+
        }
    };
}
pub(crate) use contract;
