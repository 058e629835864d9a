//! The control plane: the real server for what it supports, the fake for the rest and for faults.

mod builds;
mod fake;
mod faults;
mod real;
mod snapshots_and_builds;
mod volumes_and_secrets;
