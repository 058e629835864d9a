//! Every source of images: a registry, archives, layouts, directories.

use super::image::{Image, digest};
use super::registry::{PASSWORD, Registry, USER};
use super::{build, cli, create, write};
use crate::support::{Program, Server};
use testing::User;

#[track_caller]
fn check(server: &Server, template: &str, marker: &str) {
    check_as("1000", server, template, marker);
}

#[track_caller]
fn check_as(user: &str, server: &Server, template: &str, marker: &str) {
    let sandbox = create(server, template);
    assert_eq!(sandbox.must("user", "cat /etc/marker"), marker);
    assert_eq!(
        sandbox
            .must("user", "test ! -e /etc/gone && test -O /srv/own && test -O ~ && pwd && id -u && echo $FROM_IMAGE"),
        format!("/home/user\n{user}\nyes\n")
    );
    // Nothing of the base is in it.
    assert!(!sandbox.run("test -e /usr/bin/python3").ok());
}

#[test]
fn an_image_is_the_same_wherever_it_comes_from() {
    let (place, image, registry) = (tempfile::tempdir().expect("a directory"), Image::new("one"), Registry::start());
    let at = |name: &str| place.path().join(name).display().to_string();
    let context = at("context");
    // A registry on loopback is asked only if the configuration names it.
    let named = format!("[sandboxes]\nregistry_mirrors = {{ \"{0}\" = \"http://{0}\" }}\n", registry.address);
    write(place.path(), &[("context/none", ""), ("config.toml", &named)]);
    let server = Server::with(&["--config", &at("config.toml")]);
    image.save(&place.path().join("saved.tar"));
    image.lay_out(&place.path().join("layout"));
    let said = build(&server, &["--from", &at("saved.tar"), "--name", "saved", &context]);
    assert!(said.contains("no sudo") && said.contains("its sh stands in"), "{said}");
    check(&server, "saved", "one");
    let said = build(&server, &["--from", &at("layout"), "--name", "layout", &context]);
    assert!(!said.contains("unpacking"), "the digest is known: {said}");
    check(&server, "layout", "one");
    // A copy of what another template is.
    build(&server, &["--from", "layout", "--name", "copy", &context]);
    check(&server, "copy", "one");

    let other = Image::new("two");
    registry.push(&other, "team/app", "v1");
    let name = format!("{}/team/app:v1", registry.address);
    let refused = cli(&server).fails(1, &["build", "--from", &name, "--name", "pulled", &context]);
    assert!(refused.contains("credentials"), "{refused}");
    let signed = |password: &str| cli(&server).variable("SANDBAR_REGISTRY_PASSWORD", password);
    let pull = |program: Program, from: &str| {
        program.run(&["build", "--registry-user", USER, "--from", from, "--name", "pulled", &context])
    };
    let wrong = pull(signed("wrong"), &name);
    assert!(!wrong.status.success() && !String::from_utf8_lossy(&wrong.stderr).contains("wrong"), "{wrong:?}");
    let done = pull(signed(PASSWORD), &name);
    assert!(done.status.success(), "{done:?}");
    check(&server, "pulled", "two");
    let by_digest = format!("{}/team/app@{}", registry.address, digest(other.manifest().as_bytes()));
    assert!(pull(signed(PASSWORD), &by_digest).status.success());
    let absent = pull(signed(PASSWORD), &format!("{}/team/none:v1", registry.address));
    let said = String::from_utf8_lossy(&absent.stderr);
    assert!(!absent.status.success() && said.contains("does not exist there"), "{said}");
    // What a registry sends is checked.
    let third = Image::new("three");
    registry.push(&third, "team/spoilt", "v1");
    registry.spoil(&third.layers[1]);
    let spoilt = pull(signed(PASSWORD), &format!("{}/team/spoilt:v1", registry.address));
    assert!(!spoilt.status.success() && String::from_utf8_lossy(&spoilt.stderr).contains("digest"), "{spoilt:?}");
    check(&server, "pulled", "two");
}

#[test]
fn a_server_that_is_not_root_builds_them_too() {
    for (user, id) in [(User::with_subordinate_ids(), "1000"), (User::with_a_single_id(), "0")] {
        let (server, place) = (Server::of_user(user, &["--no-studio"]), tempfile::tempdir().expect("a directory"));
        let dockerfile = "FROM e2bdev/base\nCOPY own /srv/own\nRUN cat /srv/own >/srv/made && chmod 4755 /srv/made\n";
        write(place.path(), &[("context/Dockerfile", dockerfile), ("context/own", "own"), ("empty/none", "")]);
        let at = |name: &str| place.path().join(name).display().to_string();
        Image::new("one").save(&place.path().join("saved.tar"));
        build(&server, &["--from", &at("saved.tar"), "--name", "saved", &at("empty")]);
        check_as(id, &server, "saved", "one");
        build(&server, &["--name", "app", &at("context")]);
        let sandbox = create(&server, "app");
        assert_eq!(sandbox.must("user", "cat /srv/made; stat -c ' %U %a' /srv/made"), owned_by(id));
    }
}

/// Where all have one id, `user` is the name that it is found under.
fn owned_by(id: &str) -> &'static str {
    if id == "0" { "own user 4755\n" } else { "own root 4755\n" }
}

#[test]
fn a_directory_becomes_a_template() {
    let (server, place) = (Server::start(), tempfile::tempdir().expect("a directory"));
    write(place.path(), &[("tree/etc/marker", "three"), ("tree/etc/.wh.name", "no deletion"), ("context/none", "")]);
    let tree = place.path().join("tree");
    std::fs::create_dir(tree.join("bin")).expect("a directory");
    std::fs::copy("/usr/bin/busybox", tree.join("bin/busybox")).expect("busybox-static is installed");
    for applet in ["sh", "cat"] {
        std::os::unix::fs::symlink("busybox", tree.join("bin").join(applet)).expect("a link");
    }
    // Out of the tree, on the host; inside it leads into the sandbox.
    std::os::unix::fs::symlink("/etc/shadow", tree.join("secret")).expect("a link");
    let context = place.path().join("context").display().to_string();
    build(&server, &["--from", &tree.display().to_string(), "--name", "tree", &context]);
    let sandbox = create(&server, "tree");
    assert_eq!(sandbox.must("user", "cat /etc/marker /etc/.wh.name"), "threeno deletion");
    assert!(!sandbox.run_as("root", "cat /secret").ok(), "the host's file is not there");
    let missing = cli(&server).fails(1, &["build", "--from", "./no-such-thing", "--name", "x", &context]);
    assert!(missing.contains("no such file"), "{missing}");
}
