
# Writes the archive of the directory to standard output, without the listed folders and without
# FILEs (excludes.sh). Messages of tar follow the list. Needs tar and gzip.
# State of running commands in sessions is not saved.
own=(./.sandbar-restore.* ./.sandbar/*/run "${files[@]}")
# The marker names the checkpoint that has the files and is not one of them. Nor is a folder that
# was made only for it.
others=(./.sandbar/*)
if [[ ${others[*]} == ./.sandbar/snapshot ]]; then own+=(./.sandbar); else own+=(./.sandbar/snapshot); fi
# A compromise: on source code, level 3 takes half as long as gzip's default for a sixth more bytes,
# while callers wait at the sandbox gate.
exec tar --create --use-compress-program='gzip -3' --file=- --format=posix \
  --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime \
  --xattrs --xattrs-include='user.*' --one-file-system --quoting-style=escape --anchored --no-wildcards \
  --exclude-from=<(printf '%s\n' "${excluded[@]}" "${own[@]}") .
