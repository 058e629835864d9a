//! Attacks on shared resources: descriptors, flows, processes, connections, request heads.
