
# Writes the archive of the directory to standard output, without the folders that were listed and without FILEs (excludes.sh).
# What tar says comes after the list. Needs tar and gzip.
# What sessions keep while a command runs is nothing to be kept.
own=(./.sandbar-restore.* ./.sandbar/*/run "${files[@]}")
# The marker says which snapshot has the files: it is none of them. Nor is the folder that was made for it.
others=(./.sandbar/*)
if [[ ${others[*]} == ./.sandbar/snapshot ]]; then own+=(./.sandbar); else own+=(./.sandbar/snapshot); fi
# A middle way: on source code it takes half as long as gzip's own choice, for a sixth more bytes, while somebody waits at the fence.
exec tar --create --use-compress-program='gzip -3' --file=- --format=posix \
  --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime \
  --xattrs --xattrs-include='user.*' --one-file-system --quoting-style=escape --anchored --no-wildcards \
  --exclude-from=<(printf '%s\n' "${left[@]}" "${own[@]}") .
