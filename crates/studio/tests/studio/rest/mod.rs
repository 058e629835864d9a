//! The calls over real HTTP, on SQLite and on a real Postgres.

mod access;
mod builds;
mod document;
mod golden;
mod lab;
mod pages;
mod streams;
mod wire;
