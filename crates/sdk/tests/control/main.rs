//! The control plane: against a real server for all it serves, against the fake for the rest and for what goes wrong.

mod beginnings;
mod builds;
mod fake;
mod faults;
mod kept;
mod real;
