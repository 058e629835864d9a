//! The text of the sandbox's files that the engine writes.

pub(super) const SUDOERS: &str = "\
# The user of a sandbox owns it.
Defaults env_reset
Defaults secure_path=\"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"
Defaults !syslog, !pam_session, !fqdn
root ALL=(ALL:ALL) ALL
user ALL=(ALL:ALL) NOPASSWD: ALL
@includedir /etc/sudoers.d
";

/// `apt-get install nodejs npm` works on Debian's Node and on NodeSource's, whose package provides
/// npm and excludes Debian's.
pub(super) const NPM_PREFERENCE: &str = "\
# The package nodejs has npm in it, and cannot be installed beside that of the distribution.
Package: npm
Pin: release *
Pin-Priority: -1
";

/// Leaves PATH alone unless there is none: what a caller sets must reach its command.
pub(super) const PROFILE: &str = "\
# For login shells.
if [ -z \"${PATH-}\" ]; then
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  export PATH
fi
if [ -n \"${PS1-}\" ] && [ -n \"${BASH-}\" ] && [ -r /etc/bash.bashrc ]; then
  . /etc/bash.bashrc
fi
for part in /etc/profile.d/*.sh; do
  if [ -r \"$part\" ]; then . \"$part\"; fi
done
unset part
";

pub(super) const BASHRC: &str = "\
# For interactive shells.
case $- in *i*) ;; *) return ;; esac
shopt -s checkwinsize histappend
PS1='\\u@\\h:\\w\\$ '
";

pub(super) const HOME_PROFILE: &str = "\
if [ -n \"${BASH_VERSION-}\" ] && [ -r \"$HOME/.bashrc\" ]; then . \"$HOME/.bashrc\"; fi
if [ -d \"$HOME/.local/bin\" ]; then PATH=\"$HOME/.local/bin:$PATH\"; fi
";

pub(super) const HOME_BASHRC: &str = "\
case $- in *i*) ;; *) return ;; esac
HISTCONTROL=ignoreboth
alias ls='ls --color=auto'
alias grep='grep --color=auto'
";

pub(super) const HOME_BASH_LOGOUT: &str = "# Read when a login shell ends.\n";

pub(super) const ENVIRONMENT: &str = "PATH=\"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"\n";

/// Packages ask it before they start a service; a sandbox has no service manager.
pub(super) const POLICY_RC_D: &str = "#!/bin/sh\nexit 101\n";

/// Settings of apt where it cannot change its user.
pub(super) const APT_OF_ONE: &str = "APT::Sandbox::User \"root\";\n";

/// sudo where every user is root already, under the only id there is. It accepts sudo's usual
/// options and runs the command.
pub(super) const SUDO_OF_ONE: &str = r#"#!/bin/bash
# This sandbox has a single id, which is root's: there is no other user to become. See `sandbar doctor` on the host.
shell= login= user=root
while [ $# -gt 0 ]; do
  case $1 in
    --) shift; break ;;
    -u | --user) user=$2; shift 2 ;;
    --user=*) user=${1#*=}; shift ;;
    -g | --group | -p | --prompt | -C | -D | --chdir | -h | --host | -T | -U) shift 2 ;;
    -i | --login) login=1; shift ;;
    -s | --shell) shell=1; shift ;;
    -v | --validate | -k | -K | --remove-timestamp | --reset-timestamp) shift; [ $# -gt 0 ] || exit 0 ;;
    -l | --list) echo "User user may run the following commands: (ALL : ALL) NOPASSWD: ALL"; exit 0 ;;
    -V | --version) echo "sudo of a sandbox with a single id"; exit 0 ;;
    -*) shift ;;
    [A-Za-z_]*=*) export "$1"; shift ;;
    *) break ;;
  esac
done
case $user in
  root | '#0') export HOME=/root ;;
  user) export HOME=/home/user ;;
  *) echo "sudo: this sandbox has a single id and cannot run commands as $user" >&2; exit 1 ;;
esac
export SUDO_USER=${USER:-user} SUDO_UID=0 SUDO_GID=0 USER=$user LOGNAME=$user
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if [ -n "$login" ]; then cd "$HOME" && if [ $# -gt 0 ]; then exec /bin/bash -l -c "$*"; else exec /bin/bash -l; fi; fi
if [ -n "$shell" ]; then if [ $# -gt 0 ]; then exec /bin/bash -c "$*"; else exec /bin/bash; fi; fi
[ $# -gt 0 ] || { echo "usage: sudo [options] command" >&2; exit 1; }
exec "$@"
"#;
