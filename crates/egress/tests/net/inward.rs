//! Connections from the host to the ports of a sandbox.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use sandbar_egress::dial_in;
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use crate::lab::{Namespace, World};

#[test]
fn services_on_localhost_are_reached_over_both_families() {
    let world = World::new();
    let sandbox = Namespace::new();
    for address in ["127.0.0.1", "0.0.0.0", "::1", "::"] {
        let target = sandbox.greet(address.parse::<std::net::IpAddr>().unwrap());
        let text = world.runtime.block_on(async {
            let mut text = String::new();
            dial_in(sandbox.fd(), target.port()).await.unwrap().read_to_string(&mut text).await.unwrap();
            text
        });
        assert_eq!(text, "welcome", "{address}");
    }
}

#[test]
fn a_port_without_a_service_refuses() {
    let world = World::new();
    let (sandbox, other) = (Namespace::new(), Namespace::new());
    let elsewhere =
        [other.greet(Ipv4Addr::LOCALHOST), world.host.greet(Ipv4Addr::LOCALHOST), other.greet(Ipv6Addr::LOCALHOST)];
    for target in elsewhere {
        let error = world.runtime.block_on(dial_in(sandbox.fd(), target.port())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{target}");
    }
}

#[test]
fn two_hundred_sandboxes_are_dialled_at_once() {
    const SANDBOXES: usize = 200;
    let world = World::new();
    let sandboxes: Vec<(Namespace, u16)> = (0..SANDBOXES)
        .map(|_| {
            let sandbox = Namespace::new();
            let port = sandbox.greet(Ipv4Addr::LOCALHOST).port();
            (sandbox, port)
        })
        .collect();
    world.runtime.block_on(async {
        let mut dials = JoinSet::new();
        for (sandbox, port) in &sandboxes {
            let (netns, port) = (sandbox.fd().try_clone_to_owned().unwrap(), *port);
            dials.spawn(async move {
                let mut text = String::new();
                let mut stream = dial_in(netns.as_fd(), port).await.unwrap();
                stream.read_to_string(&mut text).await.unwrap();
                text
            });
        }
        while let Some(text) = dials.join_next().await {
            assert_eq!(text.unwrap(), "welcome");
        }
        let (sandbox, port) = (sandboxes[0].0.fd().try_clone_to_owned().unwrap(), sandboxes[0].1);
        let times = tokio::spawn(async move {
            let mut times: Vec<Duration> = Vec::new();
            for _ in 0..500 {
                let started = Instant::now();
                let stream = dial_in(sandbox.as_fd(), port).await.unwrap();
                times.push(started.elapsed());
                drop(stream);
            }
            times.sort();
            times
        });
        let times = times.await.unwrap();
        println!("dialling a sandbox's port: median {:?}, 90 % {:?}", times[250], times[450]);
    });
}
