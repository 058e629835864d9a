# Says what is in ROOT/STAGE/new: for each name of a list on standard input, then for each of the first FILES names.
#
#   verify.sh ROOT STAGE BYTES FILES
#
# The list has BYTES bytes, a NUL after each name. The answer is records, with a NUL after each: mode, user and group by
# number, inode, size, user and group by name, name (and target of a link); then digests, with the names.
set -u
root=$1 stage=$2 bytes=$3 files=$4
cd -- "$root/$stage" || exit 10
head -c "$bytes" >names || exit 10
mapfile -d '' -t names <names
cd new || exit 10
batch=500
for ((at = 0; at < ${#names[@]}; at += batch)); do
  QUOTING_STYLE=literal stat --printf='%f %u %g %i %s %U %G %N\0' -- "${names[@]:at:batch}"
done
# openssl uses the processor's own instructions for this, and is then several times as fast. It escapes some names or, where it
# is old, takes them for lines.
program=(sha256sum --zero --) end_of_record='\0'
if [[ ${names[*]} != *[$'\n\r\\']* && $(openssl dgst -sha256 -r /dev/null 2>/dev/null) == e3b0c44298fc1c14* ]]; then
  program=(openssl dgst -sha256 -r) end_of_record='\n'
fi
paths=("${names[@]/#/./}")
digests() {
  local at end=$2
  for ((at = $1; at < end; at += batch)); do
    "${program[@]}" "${paths[@]:at:end - at < batch ? end - at : batch}"
  done
}
# Two at a time: a digest keeps one processor busy.
half=$(((files + 1) / 2))
{
  digests "$half" "$files" >../second &
  digests 0 "$half"
  wait
  cat ../second
} | tr "$end_of_record" '\0'
