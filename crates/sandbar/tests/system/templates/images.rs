//! Templates from every source of images: a registry, archives, OCI layouts, directories.

use super::image::{Image, digest};
use super::registry::{PASSWORD, Registry, USER};
use super::{build, cli, create, write};
use crate::support::program::text;
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
    // The template has no file of the base template.
    assert!(!sandbox.run("test -e /usr/bin/python3").ok());
}

#[test]
fn an_image_is_the_same_wherever_it_comes_from() {
    let (place, image, registry) = (tempfile::tempdir().expect("a directory"), Image::new("one"), Registry::start());
    let at = |name: &str| place.path().join(name).display().to_string();
    let context = at("context");
    // The server uses a registry on loopback only if the configuration names it.
    let named = format!("[sandboxes]\nregistry_mirrors = {{ \"{0}\" = \"http://{0}\" }}\n", registry.address);
    write(place.path(), &[("context/none", ""), ("config.toml", &named)]);
    let server = Server::with(&["--config", &at("config.toml")]);
    image.save(&place.path().join("saved.tar"));
    image.write_layout(&place.path().join("layout"));
    let output = build(&server, &["--from", &at("saved.tar"), "--name", "saved", &context]);
    assert!(output.contains("no sudo") && output.contains("its sh stands in"), "{output}");
    check(&server, "saved", "one");
    let output = build(&server, &["--from", &at("saved.tar"), "--name", "saved", &context]);
    assert!(!output.contains("unpacking"), "the archive is known: {output}");
    let output = build(&server, &["--from", &at("layout"), "--name", "layout", &context]);
    assert!(output.contains("unpacking"), "an archive vouches for its own template only: {output}");
    check(&server, "layout", "one");
    // A template from another template.
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
    let known = pull(signed(PASSWORD), &by_digest);
    assert!(known.status.success() && !text(&known.stderr).contains("unpacking"), "{known:?}");
    // The same configuration, but other bytes of its layers: what their unpacker made of them is
    // another tree, whatever it claims.
    let packed = other.with_compressed_layers();
    registry.push(&packed, "team/packed", "v1");
    let unpacked = pull(signed(PASSWORD), &format!("{}/team/packed:v1", registry.address));
    assert!(unpacked.status.success() && text(&unpacked.stderr).contains("unpacking"), "{unpacked:?}");
    check(&server, "pulled", "two");
    let absent = pull(signed(PASSWORD), &format!("{}/team/none:v1", registry.address));
    let output = String::from_utf8_lossy(&absent.stderr);
    assert!(!absent.status.success() && output.contains("does not exist there"), "{output}");
    // The server verifies the digest of what a registry sends.
    let third = Image::new("three");
    registry.push(&third, "team/spoilt", "v1");
    registry.damage(&third.layers[1]);
    let spoilt = pull(signed(PASSWORD), &format!("{}/team/spoilt:v1", registry.address));
    assert!(!spoilt.status.success() && String::from_utf8_lossy(&spoilt.stderr).contains("digest"), "{spoilt:?}");
    check(&server, "pulled", "two");
}

#[test]
fn rootless_servers_build_images_and_dockerfiles() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    for (user, id) in [(User::with_subordinate_ids(), "1000"), (User::with_a_single_id(), "0")] {
        let (server, place) = (Server::for_user(user, &["--no-studio"]), tempfile::tempdir().expect("a directory"));
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

/// A layer with a program whose file capabilities let it change the mode of any file.
fn capable_layer() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    // Version 2, effective. DAC_OVERRIDE and FOWNER, bits 1 and 3, are the byte of a line break.
    let capability = [&[1, 0, 0, 2][..], b"\n", &[0; 15]].concat();
    archive.append_pax_extensions([("SCHILY.xattr.security.capability", &capability[..])]).expect("an entry");
    let busybox = std::fs::read("/usr/bin/busybox").expect("busybox-static is installed");
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(busybox.len() as u64);
    archive.append_data(&mut header, "able/chmod", &busybox[..]).expect("an entry");
    archive.into_inner().expect("an archive")
}

/// Asserts that `user` changes the mode of root's file by the capability, and fails without it.
#[track_caller]
fn check_capability(server: &Server) {
    let place = tempfile::tempdir().expect("a directory");
    write(place.path(), &[("context/none", "")]);
    let (saved, context) = (place.path().join("able.tar"), place.path().join("context").display().to_string());
    Image::with_layer("able", capable_layer()).save(&saved);
    build(server, &["--from", &saved.display().to_string(), "--name", "able", &context]);
    let sandbox = create(server, "able");
    assert!(!sandbox.run("/bin/chmod 600 /etc/marker").ok(), "the control: no capability");
    sandbox.must("user", "cat /etc/marker && /able/chmod 600 /etc/marker && ! cat /etc/marker 2>/dev/null");
}

#[test]
fn file_capabilities_of_an_image_work_inside() {
    check_capability(&Server::with(&["--no-studio"]));
}

#[test]
fn file_capabilities_of_an_image_work_with_subordinate_ids() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    check_capability(&Server::for_user(User::with_subordinate_ids(), &["--no-studio"]));
}

/// The expected output. With a single id, `user` is the name of every owner.
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
    // On the host this link leads out of the tree; in the sandbox it leads to the sandbox's file.
    std::os::unix::fs::symlink("/etc/shadow", tree.join("secret")).expect("a link");
    let context = place.path().join("context").display().to_string();
    build(&server, &["--from", &tree.display().to_string(), "--name", "tree", &context]);
    let sandbox = create(&server, "tree");
    assert_eq!(sandbox.must("user", "cat /etc/marker /etc/.wh.name"), "threeno deletion");
    assert!(!sandbox.run_as("root", "cat /secret").ok(), "the host's file is not there");
    let missing = cli(&server).fails(1, &["build", "--from", "./no-such-thing", "--name", "x", &context]);
    assert!(missing.contains("no such file"), "{missing}");
}
