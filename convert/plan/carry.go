package plan

// The files of a checkpoint that hold no weights: which go along.

import (
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/model/digest"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// companions plans config.json, the index and the files that go along. A tokenizer in the source's weight files becomes
// files, too, unless such a file goes along.
func (huggingFace) companions(c *conversion, doc document, p *Plan) (others []Other, left []string, err error) {
	if others, left, err = c.carry(); err != nil {
		return nil, nil, err
	}
	texts, note, err := c.src.Tokenizer()
	var made []Other
	for _, t := range texts {
		if slices.ContainsFunc(others, func(f Other) bool { return f.Name == t.Name }) {
			c.note("%s is copied: the tokenizer in the weight files is not written", text.Quote(t.Name))
			made, note = nil, ""
			break
		}
		made = append(made, Other{Name: t.Name, Size: int64(len(t.Data)), Hash: digest.Of(t.Data), Text: t.Data})
	}
	if note != "" {
		c.note("%s", note)
	}
	return slices.Concat(others, made, p.describe(doc.text)), left, err
}

// carry finds the files to copy: regular files in the checkpoint's own directory that are not
// hidden, not weights of any format, not an index or manifest of weights, and not part of an
// adapter. Beside a single weight file no file is copied. A file that cannot be copied is a
// problem.
func (c *conversion) carry() (others []Other, left []string, err error) {
	names, err := c.src.Source.List("")
	if err != nil {
		return nil, nil, err
	}
	left = []string{}
	names = slices.DeleteFunc(names, c.isReplaced)
	lost := map[string]bool{} // texts in the headers of weight files that the output does not have
	for _, f := range c.src.Inventory.Files {
		for key, value := range f.Metadata {
			if key != "format" || value != "pt" {
				lost[text.Quote(key)] = true
			}
		}
	}
	if len(lost) > 0 {
		const most = 10
		c.note("__metadata__ of the weight files is not carried over: %s",
			text.Some(slices.Sorted(maps.Keys(lost)), most, ", "))
	}
	if c.src.Alone {
		if len(names) > 0 {
			c.note("only %s is converted: files beside it, such as a tokenizer, are not copied",
				text.Quote(filepath.Base(c.src.Path)))
		}
		return nil, left, nil
	}
	for _, name := range names {
		stat, err := c.src.Source.Stat(name)
		switch {
		case strings.HasPrefix(name, "."), checkpoint.IsWeights(name), checkpoint.IsIndex(name), checkpoint.IsAdapter(name),
			err == nil && !stat.Mode().IsRegular():
			left = append(left, name)
		default:
			f, err := c.carried(name)
			if err != nil {
				c.problems = append(c.problems, problem.Of(name, err)...)
			}
			others = append(others, f)
		}
	}
	return others, left, nil
}

// isReplaced reports whether a file is read and the output has its own, or none.
func (c *conversion) isReplaced(name string) bool {
	index := c.src.Inventory.Index
	file, beside := strings.CutSuffix(name, FileManifest)
	return name == c.configName() || name == ManifestName || beside && checkpoint.IsWeights(file) ||
		name == checkpoint.ModelOptName && c.o.DType != tensor.Invalid && !c.o.encodes() ||
		index != nil && (name == index.File || slices.Contains(index.Shards, name)) ||
		slices.ContainsFunc(c.src.Inventory.Files, func(f checkpoint.FileInfo) bool { return f.Name == name })
}

// carried plans a file to copy. The copy reads it; carried reads only its first bytes.
func (c *conversion) carried(name string) (Other, error) {
	if !utf8.ValidString(name) {
		return Other{}, problem.New("", "its name is not UTF-8, which a manifest cannot hold", "rename the file, or move it away")
	}
	if err := c.src.Source.CheckInside(name); err != nil {
		return Other{}, err
	}
	f, err := c.src.OpenOther(name)
	if err != nil {
		return Other{}, err
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return Other{}, err
	}
	head, err := io.ReadAll(io.LimitReader(f, int64(len(format.LFSPointer))))
	if string(head) == format.LFSPointer {
		c.note("%s is copied as a Git LFS pointer: `git lfs pull` in the source's repository downloads the file",
			text.Quote(name))
	}
	return Other{Name: name, Size: stat.Size(), Carried: true, ModTime: stat.ModTime()}, err
}
