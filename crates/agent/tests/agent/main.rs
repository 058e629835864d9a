//! The loop against tools in memory and models that do as they are told; the models against servers that speak their wire;
//! the records on every database; and a few runs in real sandboxes.

mod anthropic;
mod cancel;
mod crash;
mod gate;
mod killed;
mod openai;
mod property;
mod real;
mod records;
mod room;
mod rules;
mod support;
mod valid;
mod wire;
