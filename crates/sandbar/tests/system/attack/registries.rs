//! Attacks by registries and images.
