//! Volumes: shared between sandboxes, limited, and safe to access while a hostile sandbox fills
//! them.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;

use sandbar_engine::volume::{ContentError, Kind, Owner, VolumeDirectory, VolumePath};
use sandbar_engine::{Engine, Mount};

use crate::Test;
use crate::support::{Sandbox, block_on, boot_of, engine, files, fresh_name};

pub(crate) const TESTS: &[Test] = &[
    ("volumes_are_shared_and_outlive_sandboxes", volumes_are_shared_and_outlive_sandboxes),
    ("volumes_have_a_limit_of_their_own", volumes_have_a_limit_of_their_own),
    ("links_in_a_volume_do_not_lead_out", links_in_a_volume_do_not_lead_out),
    ("a_mount_point_cannot_lead_out", a_mount_point_cannot_lead_out),
];

const LIMIT: u64 = 64 << 20;

/// A volume that is removed on drop.
struct Volume {
    name: String,
    directory: VolumeDirectory,
}

impl Volume {
    fn new() -> Self {
        let name = fresh_name();
        let directory = block_on(engine().create_volume(&files(&name), LIMIT)).unwrap();
        Self { name, directory }
    }

    fn at(&self, path: &str) -> Mount {
        Mount { files: files(&self.name), at: PathBuf::from(path) }
    }

    fn write(&self, path: &str, content: &str) -> Result<(), ContentError> {
        let staged = self.directory.stage()?;
        staged.file().write_all(content.as_bytes())?;
        self.directory.place(&staged, &parse(path), Owner::default(), true).map(drop)
    }

    fn read(&self, path: &str) -> Result<String, ContentError> {
        let mut text = String::new();
        self.directory.read(&parse(path))?.read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        block_on(engine().remove_files(&files(&self.name))).unwrap();
    }
}

fn parse(path: &str) -> VolumePath {
    path.parse().unwrap()
}

fn volumes_are_shared_and_outlive_sandboxes() {
    let volume = Volume::new();
    let with = |path: &str| Sandbox::with(|boot| boot.volumes = vec![volume.at(path)]);
    let (one, two) = (with("/data"), with("/srv/deep/place"));
    one.succeed("echo shared > /data/file && chown 1000:1000 /data/file && chmod 640 /data/file");
    assert_eq!(two.succeed("cat /srv/deep/place/file; stat -c %u:%g:%a /srv/deep/place/file"), "shared\n1000:1000:640");
    // Each sandbox has its own ids on the host; on disk they are those of the sandbox.
    let entry = volume.directory.stat(&parse("/file")).unwrap();
    assert_eq!((entry.uid, entry.gid, entry.mode, entry.size), (1000, 1000, 0o640, 7));
    // A file written from outside appears at once, and belongs to the default user.
    volume.write("/new/deep/file", "from outside").unwrap();
    assert_eq!(
        one.succeed("cat /data/new/deep/file; stat -c %u:%a /data/new /data/new/deep/file"),
        "from outside1000:755\n1000:644"
    );
    assert_eq!(one.succeed("stat -c %u:%g:%a /data"), "1000:1000:755", "the user can write to it");
    // A set-uid file of one sandbox is none in another, and there are no devices.
    one.succeed("cp /usr/bin/id /data/id && chown root /data/id && chmod 4755 /data/id");
    assert!(two.succeed("grep ' /srv/deep/place ' /proc/mounts").contains("nosuid,nodev"));
    drop(one);
    drop(two);
    assert_eq!(volume.read("file").unwrap(), "shared\n");
    let later = with("/again");
    assert_eq!(later.succeed("cat /again/file"), "shared");
    // A missing volume fails the boot, which leaves nothing.
    let name = fresh_name();
    let refused = block_on(async {
        let mut boot = boot_of(&engine(), &name).await;
        boot.volumes = vec![Mount { files: files(&fresh_name()), at: "/x".into() }];
        engine().boot(boot).await
    });
    assert!(refused.is_err());
}

fn volumes_have_a_limit_of_their_own() {
    let volume = Volume::new();
    let sandbox = Sandbox::with(|boot| boot.volumes = vec![volume.at("/data")]);
    let full = sandbox.fail("head -c 100M /dev/urandom > /data/big && sync /data/big");
    assert!(full.contains("quota") || full.contains("space"), "{full}");
    sandbox.succeed("echo fine > /root/elsewhere");
    let refused = volume.write("/more", &"x".repeat(1 << 20));
    assert!(matches!(refused, Err(ContentError::Full)), "{refused:?}");
    // A full volume can be emptied, also from outside.
    volume.directory.remove(&parse("/big")).unwrap();
    sandbox.succeed("sync; echo room > /data/small && sync /data/small");
}

fn links_in_a_volume_do_not_lead_out() {
    let volume = Volume::new();
    let sandbox = Sandbox::with(|boot| boot.volumes = vec![volume.at("/data")]);
    let place = tempfile::tempdir().unwrap();
    let secret = place.path().join("secret");
    fs::write(&secret, "the host's").unwrap();
    let outside = place.path().display();
    sandbox.succeed(&format!(
        "cd /data && ln -s {outside} directory && ln -s {outside}/secret file && ln -s ../../../../..{outside} up \
         && ln -s /proc/self/root proc && ln -s loop loop && mkfifo pipe && mkdir inner && echo inside > inner/text \
         && ln -s /inner/text absolute && ln -s inner relative"
    ));
    for path in ["file", "directory/secret", "up/secret", "proc/etc/passwd", "loop", "directory/new"] {
        assert!(volume.read(path).is_err(), "{path} was read");
    }
    // Links resolve inside of the volume, relative to its root.
    for path in ["absolute", "relative/text", "inner/text"] {
        assert_eq!(volume.read(path).unwrap(), "inside\n", "{path}");
    }
    assert!(matches!(volume.read("pipe"), Err(ContentError::Unfit(..))), "a pipe without a writer");
    // Writes, changes and removals from outside stay in the volume.
    let _ = volume.write("directory/new", "x");
    let _ = volume.directory.make_directory(&parse("up/made"), Owner::default(), true);
    volume.write("file", "replaced").unwrap();
    assert_eq!(
        (fs::read_to_string(&secret).unwrap().as_str(), volume.read("file").unwrap().as_str()),
        ("the host's", "replaced")
    );
    let bits = Owner { mode: Some(0o777), uid: Some(5), gid: Some(5) };
    assert_eq!(volume.directory.change(&parse("directory"), bits).unwrap().kind, Kind::Symlink);
    volume.directory.remove(&parse("up")).unwrap();
    volume.directory.remove(&parse("directory")).unwrap();
    let names: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["secret"], "nothing was made or removed outside");

    // A tree deeper than any stack, with a link at every level. Not created by a shell, whose `cd`
    // takes longer the deeper it is.
    let dig = "import os\nos.chdir('/data'); os.mkdir('deep'); os.chdir('deep')\n\
               for _ in range(3000): os.mkdir('d'); os.symlink('/', 'l'); os.chdir('d')";
    sandbox.succeed(&format!("/usr/bin/python3 -c \"{dig}\""));
    assert!(volume.directory.list(&parse("/"), 1).unwrap().iter().any(|entry| entry.name == "deep"));
    volume.directory.list(&parse("/deep"), 100).unwrap();
    volume.directory.remove(&parse("/deep")).unwrap();
    sandbox.fail("ls /data/deep");

    // Names that change between two accesses: a directory that is a link half of the time.
    fs::create_dir(place.path().join("d")).unwrap();
    fs::write(place.path().join("d/text"), "the host's").unwrap();
    sandbox.succeed(&format!(
        "cd /data && mkdir real && echo ours > real/text && ln -s {outside}/d away && cp -a real turn
         (while [ ! -e stop ]; do mv -T turn x && ln -s {outside}/d turn && rm turn && mv -T x turn; done) \
         </dev/null >/dev/null 2>&1 &"
    ));
    for _ in 0..200 {
        if let Ok(text) = volume.read("turn/text") {
            assert_eq!(text, "ours\n");
        }
        let _ = volume.directory.change(&parse("turn/text"), Owner { mode: Some(0o600), ..Owner::default() });
        let _ = volume.write("turn/written", "x");
    }
    volume.write("stop", "").unwrap();
    assert!(!place.path().join("d/written").exists());
    assert_eq!(fs::read_to_string(place.path().join("d/text")).unwrap(), "the host's");
}

fn a_mount_point_cannot_lead_out() {
    let volume = Volume::new();
    volume.write("mark", "the volume").unwrap();
    let mut sandbox = Sandbox::new();
    sandbox.succeed("ln -s /tmp /link && ln -s ../../../../../../etc /up && echo text > /file");
    let mut boot_with = |path: &str| {
        block_on(sandbox.machine.kill()).unwrap();
        let booted = block_on(async {
            let mut boot = boot_of(&sandbox.engine, &sandbox.name).await;
            boot.volumes = vec![volume.at(path)];
            sandbox.engine.boot(boot).await
        });
        match booted {
            Ok(machine) => {
                sandbox.machine = machine;
                Some(sandbox.succeed(&format!("cat {path}/mark")))
            }
            Err(_) => None,
        }
    };
    // Links resolve inside of the sandbox.
    assert_eq!(boot_with("/link/here").as_deref(), Some("the volume"));
    assert_eq!(boot_with("/up/here").as_deref(), Some("the volume"));
    assert_eq!(boot_with("/file"), None, "a file is no place for a volume");
    assert_eq!(boot_with("/data").as_deref(), Some("the volume"));
    assert!(!PathBuf::from("/etc/here").exists() && !PathBuf::from("/tmp/here").exists(), "the host has no part in it");
}
