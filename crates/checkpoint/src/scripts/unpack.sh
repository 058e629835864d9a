# Unpacks an archive into ROOT/STAGE/new, next to the current tree, and lists the result.
#
# Usage: unpack.sh ROOT STAGE BYTES LIST FILES WHO
#
# Standard input has BYTES bytes of gzip: a list of LIST inflated bytes, and the archive. WHO is
# "guest" if the sandbox may have inflated it; then the variable that marks it as gzip is unset.
#
# The list has a NUL after each item: the names of all FILES regular files in the archive's order,
# the other names, and batches, each as COUNT LINES: the next COUNT files are complete when tar has
# printed LINES lines. The output is records with a NUL after each: digests of the files with their
# names; then for every name mode, numeric user and group, inode, size, user and group names, name
# (and target of a link).
set -u

# Reads the start time of process $1 into "started", in the kernel's ticks. Fails if it has ended.
read_start() {
  local words
  { words=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  # What follows the name, which may have spaces, begins with the third field; this is the 22nd.
  words=(${words##*) })
  started=${words[19]}
}

# Whether the restore that unpacks into $1 began after this one: all processes that have the name
# among their arguments did. A killed client's script can get its first time slice after the script
# of the client that took over, and must not remove its files.
began_later() {
  local process words started own found=1
  read_start "$$" && own=$started || return 1
  for process in /proc/[0-9]*; do
    { mapfile -d '' -t words <"$process/cmdline"; } 2>/dev/null || continue
    [[ " ${words[*]-} " == *" $1 "* ]] && read_start "${process#/proc/}" || continue
    ((started > own || (started == own && ${process#/proc/} > $$))) || return 1
    found=0
  done
  return "$found"
}

root=$1 stage=$2 bytes=$3 list=$4 files=$5 who=$6
mkdir -p -- "$root" && cd -- "$root" || exit 10
shopt -s nullglob
# Removes leftovers of interrupted restores. One that contains "old" was interrupted in its swap and
# holds the only copy of the old tree, so it stays until this restore has succeeded.
for left in ./.sandbar-restore.*; do
  if began_later "${left##*/}"; then
    echo 'another restore has begun' >&2
    exit 14
  fi
  [[ -e $left/old ]] || rm -rf --one-file-system -- "$left"
done
modified=$(stat --printf=%y .)
mkdir -m 700 -- "$stage" "$stage/new" && printf %s "$modified" >"$stage/modified" && cd "$stage/new" || exit 10
if [[ $who != guest || -n ${SANDBAR_STDIN_ENCODING-} ]]; then
  # The size is known, so no end of input is needed: not every daemon can send it. Rewritten in
  # large blocks, so that tar has work while the next chunk is in transit.
  exec < <(dd ibs=64K obs=1M iflag=fullblock,count_bytes count="$bytes" status=none | gzip --decompress --stdout)
fi
head -c "$list" >../list || exit 10
mapfile -d '' -t names <../list
batches=(${names[-1]})
unset 'names[-1]'

# openssl uses the CPU's SHA instructions and is several times as fast. It escapes some names or, in
# old versions, treats them as lines.
program=(sha256sum --zero --) end_of_record='\0'
if [[ ${names[*]} != *[$'\n\r\\']* && $(openssl dgst -sha256 -r /dev/null 2>/dev/null) == e3b0c44298fc1c14* ]]; then
  program=(openssl dgst -sha256 -r) end_of_record='\n'
fi
# Reduces tar's output to one character per line, unbuffered: bash reads pipes one character at a
# time.
lines=(tr -dc '\n')
stdbuf --output=0 true 2>/dev/null && lines=(stdbuf --output=0 "${lines[@]}")
paths=("${names[@]:0:files}")
paths=("${paths[@]/#/./}")
# Files are read back while tar writes the next ones, and while they are still in the page cache.
digests() {
  local batch at=0 count seen=0 due
  for ((batch = 0; batch < ${#batches[@]}; batch += 2)); do
    count=${batches[batch]} due=${batches[batch + 1]}
    # There are fewer when tar has exited.
    ((due <= seen)) || read -r -N "$((due - seen))"
    "${program[@]}" "${paths[@]:at:count}" 2>/dev/null </dev/null
    ((at += count, seen = due))
  done
  cat >/dev/null
}
tar --extract --file=- --verbose --preserve-permissions --delay-directory-restore \
  --xattrs --xattrs-include='user.*' --quoting-style=escape | "${lines[@]}" | digests | tr "$end_of_record" '\0'
status=${PIPESTATUS[0]}
((status == 0)) || exit "$status"

for ((at = 0; at < ${#names[@]}; at += 500)); do
  QUOTING_STYLE=literal stat --printf='%f %u %g %i %s %U %G %N\0' -- "${names[@]:at:500}"
done
exit 0
