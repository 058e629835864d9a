# Unpacks an archive into ROOT/STAGE/new, beside what is in ROOT, and says what is there then.
#
#   unpack.sh ROOT STAGE BYTES LIST FILES WHO
#
# Standard input has BYTES bytes, which are gzip: a list, inflated LIST bytes long, and the archive. WHO is "guest" if it may have
# been inflated on its way; then the variable that says that it is gzip is gone.
#
# The list has a NUL after each item: the names of all FILES regular files in the archive's order, those of the rest, and batches,
# each as COUNT LINES: so many files further, all is unpacked when tar has said so many lines. The answer is records, with a NUL
# after each: digests of the files, with their names; then for every name mode, user and group by number, inode, size, user and
# group by name, name (and target of a link).
set -u
root=$1 stage=$2 bytes=$3 list=$4 files=$5 who=$6
mkdir -p -- "$root" && cd -- "$root" || exit 10
shopt -s nullglob
# What an interrupted restore left. One that has "old" in it was interrupted in its swap: that is all there is of the old
# tree, so it stays until this restore has succeeded.
for left in ./.sandbar-restore.*; do
  [[ -e $left/old ]] || rm -rf --one-file-system -- "$left"
done
modified=$(stat --printf=%y .)
mkdir -m 700 -- "$stage" "$stage/new" && printf %s "$modified" >"$stage/modified" && cd "$stage/new" || exit 10
if [[ $who != guest || -n ${SANDBAR_STDIN_ENCODING-} ]]; then
  # The size is known, so that the end of the input need not be told: not every daemon can. Written on in large pieces, so that
  # tar has something to do while the next one travels.
  exec < <(dd ibs=64K obs=1M iflag=fullblock,count_bytes count="$bytes" status=none | gzip --decompress --stdout)
fi
head -c "$list" >../list || exit 10
mapfile -d '' -t names <../list
batches=(${names[-1]})
unset 'names[-1]'

# openssl uses the processor's own instructions for this, and is then several times as fast. It escapes some names or, where it
# is old, takes them for lines.
program=(sha256sum --zero --) end_of_record='\0'
if [[ ${names[*]} != *[$'\n\r\\']* && $(openssl dgst -sha256 -r /dev/null 2>/dev/null) == e3b0c44298fc1c14* ]]; then
  program=(openssl dgst -sha256 -r) end_of_record='\n'
fi
# One character for each line of tar's, at once: bash reads pipes one character at a time.
lines=(tr -dc '\n')
stdbuf --output=0 true 2>/dev/null && lines=(stdbuf --output=0 "${lines[@]}")
paths=("${names[@]:0:files}")
paths=("${paths[@]/#/./}")
# What tar has written is read back while it goes on with the next files, and while the kernel still has it in memory.
digests() {
  local batch at=0 count seen=0 due
  for ((batch = 0; batch < ${#batches[@]}; batch += 2)); do
    count=${batches[batch]} due=${batches[batch + 1]}
    # Fewer come when tar has ended.
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
