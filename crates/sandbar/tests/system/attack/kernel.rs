//! Attacks on the host's kernel and files from inside: system calls, /proc, /sys, /usr.
