//! Overrides the price of a model: for models that the catalog lacks, or that cost something else
//! here.

use std::sync::Arc;

use async_trait::async_trait;

use super::{DeltaSink, Model, ModelError, ModelPrice, Request, Turn};

struct Priced {
    model: Arc<dyn Model>,
    price: ModelPrice,
}

/// The same model at this price, whatever the catalog says.
pub fn with_price(model: Arc<dyn Model>, price: ModelPrice) -> Arc<dyn Model> {
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

    fn max_answer_tokens(&self) -> u64 {
        self.model.max_answer_tokens()
    }

    fn price(&self) -> Option<ModelPrice> {
        Some(self.price)
    }

    async fn turn(&self, request: Request<'_>, tell: DeltaSink<'_>) -> Result<Turn, ModelError> {
        self.model.turn(request, tell).await
    }

    async fn count(&self, request: Request<'_>) -> Result<Option<u64>, ModelError> {
        self.model.count(request).await
    }
}
