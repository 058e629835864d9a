//! The studio on both databases.

mod programs;
mod records;
mod remote;
mod rest;
mod resuming;
mod whole;
mod workers;
