//! Volumes: created once, kept over restarts, and not removed while a sandbox mounts them.

use std::io::Write;

use engine::Mount;
use sandbar_node::volume_content::{ContentError, Owner, VolumePath};
use sandbar_node::{Closing, CreateError, SandboxError, VolumeError};

use crate::support::{Lab, with_spec};

#[tokio::test]
async fn volumes_are_kept_over_a_restart_with_what_is_in_them() {
    let lab = Lab::new();
    let node = lab.open().await;
    let volume = node.create_volume("data").await.expect("it is made");
    for name in ["data", "", "a b", "a/b", "..", &"x".repeat(129)] {
        let refused = node.create_volume(name).await.expect_err("a bad name");
        assert_eq!(matches!(refused, VolumeError::Taken(_)), name == "data", "{refused}");
    }
    let path: VolumePath = "/a/b".parse().expect("a path");
    let directory = node.volume_directory(&volume.id).await.expect("it opens");
    let staged = directory.stage().expect("a file");
    staged.file().write_all(b"kept").expect("it is written");
    directory.place(&staged, &path, Owner::default(), false).expect("it is placed");
    let again = directory.stage().expect("a file");
    let refused = directory.place(&again, &path, Owner::default(), false).expect_err("it is there");
    assert!(matches!(refused, ContentError::Exists(_)), "{refused}");
    node.close(Closing::Keep).await.expect("it closes");

    let node = lab.open().await;
    assert_eq!(node.volume(&volume.id).expect("it is known"), volume);
    assert!(lab.engine.files().contains(&volume.files), "not swept");
    let directory = node.volume_directory(&volume.id).await.expect("it opens");
    assert_eq!(directory.stat(&path).expect("it is there").size, 4);
    node.delete_volume(&volume.id).await.expect("it is removed");
    assert!(!lab.engine.files().contains(&volume.files));
    assert!(matches!(node.delete_volume(&volume.id).await, Err(VolumeError::NotFound(_))));
    node.create_volume("data").await.expect("the name is free again");
}

#[tokio::test]
async fn a_volume_that_a_sandbox_has_stays() {
    let lab = Lab::new();
    let node = lab.open().await;
    let volume = node.create_volume("data").await.expect("it is made");
    let mount = node.volume_mount("data", "/data").expect("it is there");
    assert!(matches!(node.volume_mount("other", "/data"), Err(VolumeError::NotFound(_))));
    let new = with_spec(|spec| spec.volumes = vec![mount.clone()]);
    let id = node.create(new, None).await.expect("it is made").id;
    let expected = Mount { files: volume.files.clone(), at: mount.path.clone().into() };
    assert_eq!(lab.engine.boots()[0].volumes, [expected]);
    let refused = node.delete_volume(&volume.id).await.expect_err("it is used");
    assert!(matches!(refused, VolumeError::InUse { .. }), "{refused}");
    node.close(Closing::Keep).await.expect("it closes");
    let node = lab.open().await;
    assert_eq!(node.get(&id).expect("it runs").record.spec.volumes, [mount]);
    assert!(matches!(node.delete_volume(&volume.id).await, Err(VolumeError::InUse { .. })));
    node.kill(&id).await.expect("it ends");
    node.delete_volume(&volume.id).await.expect("no sandbox uses it");
}

#[tokio::test]
async fn creating_with_a_deleted_volume_fails() {
    let lab = Lab::new();
    let node = lab.open().await;
    let volume = node.create_volume("data").await.expect("it is made");
    let mount = node.volume_mount("data", "/data").expect("it is there");
    node.delete_volume(&volume.id).await.expect("no sandbox has it yet");
    let refused = node.create(with_spec(|spec| spec.volumes = vec![mount]), None).await.expect_err("it is gone");
    assert!(matches!(&refused, CreateError::Sandbox(SandboxError::VolumeGone(name)) if name == "data"), "{refused}");
    assert!(lab.engine.boots().is_empty() && node.all().is_empty(), "nothing was made");
}
