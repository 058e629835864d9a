//! Attacks on the network rules: names, secrets, neighbours, DNS.
