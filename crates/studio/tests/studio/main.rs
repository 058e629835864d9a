//! The studio on both databases.

mod programs;
mod records;
mod rest;
mod whole;
mod workers;
