"""Options of the commands that come with a system; see `table` for how they are written."""

from __future__ import annotations

TABLE = """
# Files.
cat: reads bound each
  shown -n/--number -b -A -v -e -E -s
nl: reads bound each
  shown -b/--body-numbering= -w/--number-width= -s=
bat: reads bound each
  shown -p/--plain --paging= --style= -n/--number --color=
less: reads bound each
  shown -R -N -F -X -S
more: reads bound each
ls: reads bound here
  -a/--all -A/--almost-all -l -R/--recursive -t -r/--reverse -S -d/--directory -i/--inode
  shown -1 -F/--classify -h/--human-readable --color -G -C -p --group-directories-first -x -m
tree: reads bound here
  -L= -I= -d -a -P=
  shown -C -n --noreport -F --dirsfirst
rm: bound each
  -r/-R/--recursive -f/--force -d/--dir
  shown -v/--verbose
rmdir: bound each
  -p/--parents
  shown -v/--verbose
mkdir: bound each
  -p/--parents -m/--mode=
  shown -v/--verbose
touch: bound each
  -c/--no-create -d/--date= -t=
cp: bound
  -r/-R/--recursive -a/--archive -f/--force -n/--no-clobber -p -u/--update
  shown -v/--verbose
mv: bound
  -f/--force -n/--no-clobber -u/--update
  shown -v/--verbose
ln: bound
  -s/--symbolic -f/--force -n/--no-dereference
  shown -v/--verbose
chmod: bound
  -R/--recursive
  shown -v/--verbose -c/--changes -f
chown: bound
  -R/--recursive
  shown -v/--verbose -c/--changes -f
head: reads bound
  -n/--lines= -c/--bytes=
  shown -q/--quiet/--silent -v/--verbose
  default -n=10
tail: reads bound
  -n/--lines= -c/--bytes= -f/--follow -F
  shown -q/--quiet -v/--verbose
  default -n=10
wc: reads bound any_order
  -l/--lines -w/--words -c/--bytes -m/--chars
diff: reads bound
  -r/--recursive -q/--brief -i -w/--ignore-all-space -b -B -N/--new-file -x/--exclude=
  shown -u/--unified -U= -y/--side-by-side --color -c
cmp: reads bound
  shown -s
stat: reads bound
  -c/--format= -f
file: reads bound
  -b/--brief
du: reads bound here
  -s/--summarize -a/--all -d/--max-depth= -c/--total
  shown -h/--human-readable -k -m
df: reads bound
  -i/--inodes -T
  shown -h/--human-readable -k -m
sed: bound
  -n/--quiet/--silent -i/--in-place -E/-r/--regexp-extended -e/--expression= -f/--file=
sort: reads bound
  -n/--numeric-sort -r/--reverse -u/--unique -k/--key= -t/--field-separator= -h/--human-numeric-sort -f -V
uniq: reads bound
  -c/--count -d/--repeated -u/--unique -i
cut: reads bound
  -d/--delimiter= -f/--fields= -c/--characters= -s
tr: reads words
  -d/--delete -s/--squeeze-repeats -c
xargs: inner words
  -n/--max-args= -I= -0/--null -r/--no-run-if-empty -P/--max-procs= -L= -d=
tee: bound
  -a/--append
jq: reads bound
  -r/--raw-output -c/--compact-output -e -s -n --arg=
  shown -C -M -S
md5sum: reads bound
sha256sum: reads bound
tar: bound
  -x/--extract/--get -c/--create -t/--list -f/--file= -z/--gzip -j/--bzip2 -J/--xz -C/--directory=
  --strip-components= --exclude= -p
  shown -v/--verbose
zip: bound
  -r/--recurse-paths -x/--exclude= -j/--junk-paths -9
  shown -q/--quiet
scp: words
  -r -P= -i=
  shown -q -v -C
ping: words reads
  -c= -i= -W=
  shown -q -n
unzip: bound
  -d= -o -l -n -j
  shown -q -qq
rsync: bound
  -a/--archive -z/--compress -r -e= --delete --exclude= -n/--dry-run
  shown -v/--verbose -P --progress -h -q

# Searching.
grep: reads bound
  -r/-R/--recursive/--dereference-recursive -i/--ignore-case/-y -w/--word-regexp -x/--line-regexp
  -v/--invert-match -E/--extended-regexp -F/--fixed-strings -P/--perl-regexp -G/--basic-regexp
  -l/--files-with-matches -c/--count -L/--files-without-match -o/--only-matching -q/--quiet/--silent
  -e/--regexp= -f/--file= -m/--max-count= -A/--after-context= -B/--before-context= -C/--context= --include=
  --exclude= --exclude-dir=
  shown -n/--line-number -H/--with-filename -h/--no-filename -s/--no-messages -I --color --colour --null
  shown -T -a/--text --heading --no-heading -N/--no-line-number --line-buffered --column
rg: reads bound
  -i/--ignore-case -S/--smart-case -w/--word-regexp -x/--line-regexp -v/--invert-match -F/--fixed-strings
  -P/--pcre2 -l/--files-with-matches -c/--count -o/--only-matching -q/--quiet -e/--regexp= -m/--max-count=
  -A/--after-context= -B/--before-context= -C/--context= -g/--glob= -t/--type= -T/--type-not= -U/--multiline
  --files --hidden --no-ignore -u -L/--follow --max-depth=
  shown -n/--line-number -H/--with-filename -I/--no-filename -N/--no-line-number --color= --heading
  shown --no-heading --column -p/--pretty --sort= --no-messages --line-buffered

# Processes and the machine.
ps: reads bound words
free: reads bound words
  shown -h/--human -m/--mebi -g/--gibi -k
kill: words bound
  -s=
pkill: words bound
  -f/--full -9 -u=
pgrep: words bound reads
  -f/--full -u=
  shown -a -l
ss: reads bound words
  -t/--tcp -u/--udp -l/--listening -a/--all
  shown -n/--numeric -p/--processes
netstat: reads bound words
  -t/--tcp -u/--udp -l/--listening -a/--all
  shown -n/--numeric -p/--programs
truncate: bound
  -s/--size=
lsof: reads bound words
  -i= -p= -t -n -P
which: reads bound words
  -a
uname: reads bound words
  -a/--all -s -r -m
systemctl: bound words
  --user --now
  shown --no-pager -q/--quiet -l --full
journalctl: reads bound words
  -u/--unit= -n/--lines= -f/--follow -S/--since= -b
  shown --no-pager -q

# The network.
curl: words any_order
  -X/--request= -d/--data/--data-ascii= --data-raw= --data-binary= --data-urlencode= -H/--header= -o/--output=
  -O/--remote-name -L/--location -I/--head -i/--include -k/--insecure -u/--user= -F/--form= -A/--user-agent=
  -b/--cookie= -c/--cookie-jar= -G/--get -T/--upload-file= -x/--proxy= --json= -w/--write-out= -e/--referer=
  shown -s/--silent -S/--show-error -f/--fail --fail-with-body -v/--verbose -m/--max-time=
  shown --connect-timeout= --retry= --retry-delay= -#/--progress-bar --no-progress-meter --compressed
  shown -N/--no-buffer
wget: words
  -O/--output-document= -P/--directory-prefix= -c/--continue -r/--recursive --header= --post-data=
  shown -q/--quiet -nv/--no-verbose -v --show-progress --progress= -T/--timeout= -t/--tries=
ssh: inner words
  -p= -i= -o= -l=
  shown -q -v

# Packages of the system.
apt-get install: any_order words
  --no-install-recommends -f
  shown -y/--yes/--assume-yes -q/--quiet -qq
apt-get update: words
  shown -y/--yes/--assume-yes -q/--quiet -qq
apt-get remove: any_order words
  --purge
  shown -y/--yes/--assume-yes -q/--quiet -qq
brew install: any_order words
  --cask
  shown -q/--quiet

# Databases.
psql: words
  -c/--command= -d/--dbname= -h/--host= -p/--port= -U/--username= -f/--file= -t/--tuples-only -A
  shown -q/--quiet -X -P=
sqlite3: long_dash
  shown -header -column -json -line -csv
mysql: words
  -e/--execute= -u/--user= -h/--host= -D/--database= -P/--port= -N -B
  shown -t/--table
"""
