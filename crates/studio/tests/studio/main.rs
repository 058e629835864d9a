//! The studio on both databases.

mod far;
mod programs;
mod records;
mod rest;
mod waking;
mod whole;
mod workers;
