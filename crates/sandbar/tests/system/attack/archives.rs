//! Attacks through checkpoints: archives that a hostile sandbox writes.
