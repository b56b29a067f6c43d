package convert

// Where a checkpoint is: which files of a directory count, as transformers
// decides it, and what to say when none does.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"dsmoe/convert/safetensors"
)

const (
	configName  = "config.json"
	weightsName = "model.safetensors"
	indexName   = "model.safetensors.index.json"

	pickleName      = "pytorch_model.bin"
	pickleIndexName = "pytorch_model.bin.index.json"
)

// location is a path resolved to files.
type location struct {
	dir         string
	index       string   // the index to read; empty if there is none
	files       []string // the weight files to read when there is no index
	weightFiles []string // all *.safetensors of the directory, sorted; all pytorch_model*.bin if those are read
	problems    []Problem
	notes       []Problem
}

// locate resolves the path that the user gave.
func locate(path string) (*location, error) {
	stat, err := os.Stat(path)
	if err != nil {
		// OpenRegular words the error, a dangling link among others.
		_, _, err = safetensors.OpenRegular(path)
		problems := problemsOf("", err)
		return nil, &Error{Path: path, Problems: problems}
	}
	if stat.IsDir() {
		return locateDir(path)
	}
	l := &location{dir: filepath.Dir(path)}
	name := filepath.Base(path)
	switch {
	case !stat.Mode().IsRegular():
		return nil, unusable(path, "is neither a directory nor a regular file", "")
	case strings.HasSuffix(name, ".safetensors"):
		l.files = []string{name}
		if _, part, ok := shardFamily(name); ok {
			l.notes = []Problem{{File: name, Cause: "only this file is read, of a set of shards: it is " + part}}
		}
		return l, nil
	case isPickle(name):
		l.files = []string{name}
		return l, nil
	case isIndexName(name):
		l.index = name
		l.weightFiles, err = weightFiles(l.dir, name)
		return l, err
	}
	return nil, refuseFile(path, name)
}

// isIndexName accepts model.safetensors.index.json and its variants, such as
// model.safetensors.index.fp16.json.
func isIndexName(name string) bool {
	return strings.HasSuffix(name, ".json") && (strings.Contains(name, ".safetensors.index.") || isPickleIndex(name))
}

// isPickleIndex tells the index of pytorch_model-*.bin from that of safetensors.
func isPickleIndex(name string) bool { return strings.Contains(name, ".bin.index.") }

// isPickle says whether a weight file is read as torch.save writes it.
func isPickle(name string) bool {
	switch filepath.Ext(name) {
	case ".bin", ".pt", ".pth":
		return true
	}
	return false
}

// refuseFile names a file that is no safetensors checkpoint for what it is.
func refuseFile(path, name string) error {
	if kind := foreignKind(name); kind != "" {
		return unusable(path, "is "+kind+", not a safetensors checkpoint", foreignHint)
	}
	if name == configName {
		return unusable(path, "is a config, not a checkpoint", "give the directory that it is in")
	}
	return unusable(path, "is not a checkpoint", "give a directory, a .safetensors file or a "+indexName)
}

const foreignHint = "convert it to safetensors first, with the tool that wrote it"

// foreignKind names weight files of other formats by their extension.
func foreignKind(name string) string {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".gguf":
		return "a GGUF file"
	case ".bin", ".pt", ".pth", ".ckpt":
		return "a PyTorch pickle"
	case ".h5", ".msgpack", ".onnx", ".npz":
		return "a file of another framework"
	}
	return ""
}

func locateDir(dir string) (*location, error) {
	l := &location{dir: dir}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, unusable(dir, readDirCause(err), "")
	}
	has := map[string]bool{}
	var pickles []string
	for _, e := range entries { // sorted by name
		has[e.Name()] = true
		if strings.HasSuffix(e.Name(), ".safetensors") {
			l.weightFiles = append(l.weightFiles, e.Name())
		}
		if ok, _ := filepath.Match("pytorch_model*.bin", e.Name()); ok {
			pickles = append(pickles, e.Name())
		}
	}
	switch {
	case has[weightsName]:
		l.single(has[indexName])
	case has[indexName]:
		l.index = indexName
	case len(l.weightFiles) > 0:
		l.unnamed()
	case has[pickleName]:
		l.files, l.weightFiles = []string{pickleName}, pickles
	case has[pickleIndexName]:
		l.index, l.weightFiles = pickleIndexName, pickles
	default:
		l.problems = append(l.problems, noWeights(entries))
	}
	return l, nil
}

// weightFiles lists the weight files beside an index.
func weightFiles(dir, index string) (names []string, err error) {
	pattern := "*.safetensors"
	if isPickleIndex(index) {
		pattern = "pytorch_model*.bin"
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, unusable(dir, readDirCause(err), "")
	}
	for _, e := range entries {
		if ok, _ := filepath.Match(pattern, e.Name()); ok {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// single takes model.safetensors, which wins over everything else.
func (l *location) single(hasIndex bool) {
	l.files = []string{weightsName}
	if hasIndex {
		l.notes = append(l.notes, Problem{File: indexName, Cause: "not read: " + weightsName + " is there and goes first"})
	}
	for _, name := range l.weightFiles {
		if name != weightsName {
			l.notes = append(l.notes, Problem{File: name, Cause: "not read: " + weightsName + " is there and goes first"})
		}
	}
}

// unnamed deals with weight files that no loader would find. Their headers are
// looked at all the same.
func (l *location) unnamed() {
	l.files = l.weightFiles
	shards := 0
	for _, name := range l.weightFiles {
		if _, _, ok := shardFamily(name); ok {
			shards++
		}
	}
	if shards > 0 {
		l.problems = append(l.problems, Problem{File: indexName, Cause: fmt.Sprintf("missing, but there are %d shards", shards),
			Hint: "download the index; without it a missing shard goes unnoticed"})
		return
	}
	l.problems = append(l.problems, Problem{File: weightsName, Cause: fmt.Sprintf("missing, but there is %s", safetensors.Quote(l.weightFiles[0])),
		Hint: "rename the file, or give its own path"})
}

// noWeights says what a directory holds instead of weights.
func noWeights(entries []os.DirEntry) Problem {
	for _, e := range entries {
		if kind := foreignKind(e.Name()); kind != "" {
			return Problem{Cause: "holds no safetensors; " + safetensors.Quote(e.Name()) + " is " + kind + ", which cannot be read", Hint: foreignHint}
		}
	}
	if len(entries) == 0 {
		return Problem{Cause: "directory is empty"}
	}
	return Problem{Cause: "directory holds no " + weightsName + " and no " + indexName}
}

func readDirCause(err error) string {
	var perr *os.PathError
	if errors.As(err, &perr) {
		err = perr.Err
	}
	return err.Error()
}

var shardPattern = regexp.MustCompile(`^(.*)-([0-9]{5,})-of-([0-9]{5,})\.(?:safetensors|bin)$`)

// shardFamily splits a shard's file name into what it shares with the other
// shards of its set, and "N of M".
func shardFamily(name string) (family, part string, ok bool) {
	m := shardPattern.FindStringSubmatch(name)
	if m == nil {
		return "", "", false
	}
	return m[1] + "-of-" + m[3], m[2] + " of " + m[3], true
}
