use crate::Test;
pub const TESTS: &[Test] = &[];
pub const SERVE: &str = "serve";
pub fn serve(_: &[String]) {}
