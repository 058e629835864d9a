//! Files of the sandbox in our own words.

pub(super) const SUDOERS: &str = "\
# Whoever works in a sandbox owns it.
Defaults env_reset
Defaults secure_path=\"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"
Defaults !syslog, !pam_session, !fqdn
root ALL=(ALL:ALL) ALL
user ALL=(ALL:ALL) NOPASSWD: ALL
@includedir /etc/sudoers.d
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
