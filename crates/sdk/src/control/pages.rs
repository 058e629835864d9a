//! Paged lists as one stream.

use futures::{Stream, TryStreamExt as _, stream};

use crate::error::CallError;

/// One page: its rows, and the token of the next page.
#[derive(Debug)]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    /// Token of the next page.
    pub(crate) next: Option<String>,
}

/// State of a stream of pages.
enum At {
    Start,
    Token(String),
    End,
}

/// Streams the rows of all pages. Fetches a page when its first row is polled; ends after an error.
pub(super) fn rows<T, F, Fetching>(fetch: F) -> impl Stream<Item = Result<T, CallError>> + Send
where
    T: Send,
    F: Fn(Option<String>) -> Fetching + Send,
    Fetching: Future<Output = Result<Page<T>, CallError>> + Send,
{
    let pages = stream::try_unfold((At::Start, fetch), |(at, fetch)| async move {
        let token = match at {
            At::Start => None,
            At::Token(token) => Some(token),
            At::End => return Ok::<_, CallError>(None),
        };
        let Page { items, next } = fetch(token.clone()).await?;
        let at = match next {
            // A server that repeats its token would be read forever.
            Some(next) if Some(&next) == token.as_ref() => {
                let detail = "the next page is the one that was just read".to_owned();
                return Err(CallError::Protocol { call: "read a list".into(), detail });
            }
            Some(next) => At::Token(next),
            None => At::End,
        };
        Ok(Some((stream::iter(items.into_iter().map(Ok)), (at, fetch))))
    });
    pages.try_flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_repeated_page_token_is_an_error() {
        let again = |_| async { Ok(Page { items: vec![1], next: Some("again".to_owned()) }) };
        let read = rows(again).try_collect::<Vec<i32>>().await;
        assert!(matches!(read, Err(CallError::Protocol { .. })), "{read:?}");
    }
}
