//! A model with a given price: for models that the list does not have, or that cost something else
//! here.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Model, ModelError, Price, Request, Tell, Turn};

struct Priced {
    model: Arc<dyn Model>,
    price: Price,
}

/// The same model at this price, whatever the list says.
pub fn with_price(model: Arc<dyn Model>, price: Price) -> Arc<dyn Model> {
    Arc::new(Priced { model, price })
}

#[async_trait]
impl Model for Priced {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn window(&self) -> u64 {
        self.model.window()
    }

    fn longest_answer(&self) -> u64 {
        self.model.longest_answer()
    }

    fn price(&self) -> Option<Price> {
        Some(self.price)
    }

    async fn turn(&self, request: Request<'_>, tell: Tell<'_>) -> Result<Turn, ModelError> {
        self.model.turn(request, tell).await
    }

    async fn count(&self, request: Request<'_>) -> Result<Option<u64>, ModelError> {
        self.model.count(request).await
    }
}
