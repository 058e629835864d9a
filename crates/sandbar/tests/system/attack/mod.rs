//! Attacks on the product, one file per surface. Every test makes the attempt, asserts the refusal,
//! and runs a control: the same action succeeds where it is allowed, so that a refusal is isolation
//! and not a typing mistake. `./dev attack` runs these tests alone.

mod accounts;
mod addresses;
mod archives;
mod budgets;
mod calls;
mod credentials;
mod disks;
mod edge;
mod egress;
mod images;
mod kernel;
mod mcp;
mod races;
mod registries;
mod screenshots;
mod smuggling;
mod tenants;
