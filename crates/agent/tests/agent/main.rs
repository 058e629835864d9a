//! Tests the loop with in-memory tools and scripted models, the models against servers that speak
//! their protocol, the records on every database, and a few runs in real sandboxes.

mod anthropic;
mod cancel;
mod compaction;
mod crash;
mod gated_records;
mod killed;
mod memory_records;
mod openai;
mod property;
mod real;
mod records;
mod rules;
mod support;
mod valid;
mod wire;
mod workspaces;
