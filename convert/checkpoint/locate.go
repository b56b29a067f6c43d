package checkpoint

// Where a checkpoint is: which files of a directory belong to it, by transformers' rules, and
// the message for a directory without a checkpoint.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"dsmoe/convert/format"
	"dsmoe/convert/remote"
	"dsmoe/convert/source"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// location is a path resolved to files.
type location struct {
	dir         source.Dir
	path        string         // that reports name; of a model of the hub with its commit
	format      *format.Format // of the weight files
	index       string         // the index to read; empty without an index
	files       []string       // the weight files to read
	together    bool           // they are all of one checkpoint, even without an index
	alone       bool           // the path is one weight file
	weightFiles []string       // all of the directory that belong to the format, sorted
	problems    []problem.Problem
	notes       []problem.Problem
}

func locateOnDisk(path string) (*location, error) {
	stat, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if cache, err := downloaded(path); err != nil || cache != path {
			return locateDir(path)
		}
	}
	if err != nil {
		// OpenRegular words the error, a dangling link among others.
		_, _, err = format.OpenRegular(path)
		problems := problem.Of("", err)
		if host, model, _ := strings.Cut(path, "/"); slices.Contains(remote.HubHosts, host) {
			problems[0].Hint = "hf://" + model + " is the model in the hub"
		}
		return nil, problem.In(path, problems...)
	}
	switch {
	case stat.IsDir():
		return locateDir(path)
	case !stat.Mode().IsRegular():
		return nil, problem.New(path, "is neither a directory nor a regular file", "")
	}
	return locateFile(path, source.Disk(filepath.Dir(path)), filepath.Base(path))
}

// locateFile takes a weight file or an index of dir; path is what the user gave for it.
func locateFile(path string, dir source.Dir, name string) (*location, error) {
	if IsAdapter(name) {
		return nil, problem.New(path, isAdapter, adapterHint)
	}
	if f := FormatOf(name); f != nil {
		if entries, err := dir.List(""); err == nil && mistral.Recognise(name) {
			f = formatsIn(entries)[0]
		}
		l := &location{dir: dir, format: f, files: []string{name}, alone: true}
		if family, part, ok := shardFamily(name); ok && f.Index == "" {
			entries, err := readDir(dir)
			l.takeSet(family, belonging(f, entries))
			return l, err
		} else if ok {
			l.notes = []problem.Problem{{File: name, Cause: "only this file is read, of a set of shards: it is " + part}}
		}
		return l, nil
	}
	f := indexFormat(name)
	switch kind := foreignKind(name); {
	case f == nil && kind != "":
		return nil, problem.New(path, "is "+kind+", not a safetensors checkpoint", foreignHint)
	case f == nil && name == ConfigName:
		return nil, problem.New(path, "is a config, not a checkpoint",
			"give the directory that it is in; inspect arch, mem and report take a config alone")
	case f == nil:
		return nil, problem.New(path, "is not a checkpoint", "give a directory, a .safetensors file or a "+formats[0].Index)
	}
	entries, err := readDir(dir)
	if mistral.IsIndex(name) {
		f = formatsIn(entries)[0]
	}
	return &location{dir: dir, format: f, index: name, weightFiles: belonging(f, entries)}, err
}

const foreignHint = "convert it to safetensors first, with the tool that wrote it"

// locateDir finds the weights of a directory: of the first format that has any.
func locateDir(path string) (*location, error) {
	dir, err := Snapshot(path)
	if err != nil {
		return nil, err
	}
	l := &location{dir: source.Disk(dir)}
	if dir != path {
		l.notes = []problem.Problem{{Cause: "is a cache of the hub: " + text.Quote(filepath.Base(dir)) +
			" is the snapshot that is read"}}
	}
	return l.search(path)
}

// search finds the weights of the directory; path is what the user gave for it.
func (l *location) search(path string) (*location, error) {
	entries, err := readDir(l.dir)
	if err != nil {
		return nil, err
	}
	if isPack(entries) {
		return nil, problem.New(path, "is a golden pack, not a checkpoint", "a pack is GOLDEN of verify, inspect routing and report")
	}
	for _, f := range formatsIn(entries) {
		if l.find(f, entries) {
			return l, nil
		}
	}
	l.format = formats[0]
	if i := slices.IndexFunc(entries, IsAdapter); i >= 0 {
		return nil, problem.In(path, problem.Problem{File: entries[i], Cause: isAdapter, Hint: adapterHint})
	}
	// A directory without weights: the problem names the files found instead.
	found := problem.Problem{Cause: "directory holds no " + formats[0].Single + " and no " + formats[0].Index}
	ofTrainer := func(name string) bool {
		return slices.ContainsFunc([]string{"optimizer", "scheduler", "rng_state", "training_args", "scaler"},
			func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	}
	readable := slices.IndexFunc(entries, func(name string) bool { return FormatOf(name) != nil && !ofTrainer(name) })
	foreign := slices.IndexFunc(entries,
		func(name string) bool { return FormatOf(name) == nil && foreignKind(name) != "" })
	switch {
	case readable >= 0:
		found = misnamed(FormatOf(entries[readable]), entries[readable])
	case foreign >= 0:
		found = problem.Problem{Cause: "holds no safetensors; " + text.Quote(entries[foreign]) + " is " +
			foreignKind(entries[foreign]) + ", which cannot be read", Hint: foreignHint}
	case len(entries) == 0:
		found = problem.Problem{Cause: "directory is empty"}
	}
	for _, t := range otherTools {
		if slices.Contains(entries, t.file) {
			found.Hint = t.hint
		}
	}
	if below, _ := filepath.Glob(filepath.Join(path, "*", ConfigName)); len(below) > 0 && found.Hint == "" {
		found.Hint = "a checkpoint may be below: " + text.Quote(filepath.Dir(below[0]))
	}
	l.problems = append(l.problems, found)
	return l, nil
}

// isPack recognises the files of a golden pack: a manifest and stages, no config, and no weights that a loader looks for.
func isPack(entries []string) bool {
	return slices.Contains(entries, "manifest.json") && !slices.ContainsFunc(entries, func(name string) bool {
		return name == ConfigName || slices.ContainsFunc(formats, func(f *format.Format) bool {
			return name == f.Single || name == f.Index || f.Index == "" && FormatOf(name) == f
		})
	})
}

// find looks for weights of a format: in one file, which goes first, by an index, or in
// files that no loader would find.
func (l *location) find(f *format.Format, entries []string) bool {
	l.format, l.weightFiles = f, belonging(f, entries)
	switch {
	case f.Index == "":
		return l.sets()
	case slices.Contains(entries, f.Single): // it wins over everything else
		l.files = []string{f.Single}
		others := slices.DeleteFunc(slices.Clone(l.weightFiles), func(name string) bool { return name == f.Single })
		if slices.Contains(entries, f.Index) {
			others = slices.Insert(others, 0, f.Index)
		}
		for _, name := range others {
			l.notes = append(l.notes, problem.Problem{File: name, Cause: "not read: " + f.Single + " is there and goes first"})
		}
	case slices.Contains(entries, f.Index):
		l.index = f.Index
	case len(l.weightFiles) > 0:
		l.unnamed(slices.ContainsFunc(entries, f.IsIndex))
	default:
		return false
	}
	return true
}

// sets takes the files of a format without an index: one file, or all of a set of shards.
// Several models in one directory are a problem.
func (l *location) sets() bool {
	var sets []string // the names of the first files
	for _, name := range l.weightFiles {
		family, _, _ := shardFamily(name)
		if family == "" || !slices.ContainsFunc(sets,
			func(first string) bool { other, _, _ := shardFamily(first); return other == family }) {
			sets = append(sets, name)
		}
	}
	if len(sets) == 0 {
		return false
	}
	if len(sets) > 1 {
		l.problems = append(l.problems, problem.Problem{Cause: fmt.Sprintf("holds %d models: %s", len(sets),
			strings.Join(quoteAll(sets), ", ")), Hint: "give the path of one of these files"})
		return true
	}
	if family, _, ok := shardFamily(sets[0]); ok {
		l.takeSet(family, l.weightFiles)
	} else {
		l.files = sets
	}
	return true
}

func quoteAll(names []string) []string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = text.Quote(name)
	}
	return quoted
}

// takeSet takes the shards of a set among names, which must be complete.
func (l *location) takeSet(family string, names []string) {
	l.files, l.together = nil, true
	for _, name := range names {
		if other, _, _ := shardFamily(name); other == family {
			l.files = append(l.files, name)
		}
	}
	if !isWholeSet(l.files) {
		_, part, _ := shardFamily(l.files[0])
		l.problems = append(l.problems, problem.Problem{File: l.files[0],
			Cause: fmt.Sprintf("is %s, but there are %s of this set", part, text.Plural(len(l.files), "file")),
			Hint:  "download the others"})
	}
}

// belonging lists the files that belong to a checkpoint in the format.
func belonging(f *format.Format, entries []string) (names []string) {
	for _, name := range entries {
		if f.Belongs(name) && !IsAdapter(name) {
			names = append(names, name)
		}
	}
	return names
}

// readDir lists the names in a directory, sorted.
func readDir(dir source.Dir) ([]string, error) {
	names, err := dir.List("")
	if err != nil {
		return nil, problem.In(dir.Path(""), problem.Of("", err)...)
	}
	return names, nil
}

// unnamed handles weight files without an index. Shards with names that prove the set complete
// are the checkpoint, unless the directory has an index of another name, or the format can be
// written: its index comes last, and an output without an index is unfinished. The headers of
// other files are read all the same.
func (l *location) unnamed(hasVariant bool) {
	l.files = l.weightFiles
	shards := 0
	for _, name := range l.weightFiles {
		if _, _, ok := shardFamily(name); ok {
			shards++
		}
	}
	switch {
	case l.format.Layout == nil && !hasVariant && isWholeSet(l.weightFiles):
		l.together = true
		l.notes = append(l.notes, problem.Problem{File: l.format.Index,
			Cause: fmt.Sprintf("missing: all %d shards are read, as their names count them", shards),
			Hint:  "transformers does not find shards without their index; dsmoe convert writes one"})
	case shards > 0:
		l.problems = append(l.problems, problem.Problem{File: l.format.Index,
			Cause: fmt.Sprintf("missing, but there are %d shards", shards),
			Hint:  "download the index; without it a missing shard goes unnoticed"})
	default:
		l.problems = append(l.problems, misnamed(l.format, l.weightFiles[0]))
	}
}

// misnamed is the problem of a weight file with a name that no loader looks for.
func misnamed(f *format.Format, name string) problem.Problem {
	hint := "rename the file, or give its own path"
	if partOfRank.MatchString(name) {
		hint = "each such file has one rank's part of the matrices: convert the checkpoint that they were cut from"
	}
	return problem.Problem{File: f.Single, Cause: "missing, but there is " + text.Quote(name), Hint: hint}
}

// partOfRank matches the files of DeepSeek's convert.py, and of vLLM's save_sharded_state.
var partOfRank = regexp.MustCompile(`^model\d+-mp\d+\.|^model-rank-\d+-part-\d+\.`)

// otherTools says how to make a checkpoint of a directory that another tool left, by a file in it.
var otherTools = []struct{ file, hint string }{
	{"zero_to_fp32.py", "a DeepSpeed checkpoint: python zero_to_fp32.py . OUT writes a state dict, which is read with config.json beside it"},
	{".metadata", "a distributed checkpoint of torch: python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR " +
		"pytorch_model.bin writes a state dict, which is read with config.json beside it"},
}

// isWholeSet reports whether the files are exactly the shards 1 to M "of M".
func isWholeSet(names []string) bool {
	first, _, _ := shardFamily(names[0])
	seen := map[int]bool{}
	for _, name := range names {
		family, part, ok := shardFamily(name)
		var i, of int
		if _, err := fmt.Sscanf(part, "%d of %d", &i, &of); !ok || err != nil || family != first || i < 1 || i > of ||
			of != len(names) {
			return false
		}
		seen[i] = true
	}
	return len(seen) == len(names)
}

// Messages about an adapter in a model's place, or beside a model.
const (
	isAdapter     = "belongs to a PEFT adapter such as LoRA, not to a model: it holds changes to the weights of another"
	besideAdapter = "belongs to a PEFT adapter such as LoRA: transformers applies it to the weights beside it if peft is installed; " +
		"dsmoe reads those weights without it"
	adapterHint = "dsmoe convert BASE DST --adapter DIR merges it into its base model; give DST"
)

// IsAdapter recognises the files of a PEFT adapter by name: its config and its weights.
func IsAdapter(file string) bool {
	return strings.HasPrefix(file, "adapter_config.") || strings.HasPrefix(file, "adapter_model.") ||
		strings.HasPrefix(file, "adapter_model-")
}

var shardPattern = regexp.MustCompile(`^(.*)-([0-9]{5,})-of-([0-9]{5,})\.[a-z]+$`)

// IsShard reports whether a file's name is that of one of several shards.
func IsShard(file string) bool {
	_, _, ok := shardFamily(file)
	return ok
}

// shardFamily splits a shard's file name into the name of its set and "N of M".
func shardFamily(name string) (family, part string, ok bool) {
	m := shardPattern.FindStringSubmatch(name)
	if m == nil {
		return "", "", false
	}
	return m[1] + "-of-" + m[3], m[2] + " of " + m[3], true
}
