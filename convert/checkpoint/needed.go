package checkpoint

// Checkpoints that are read in part: a weight file without a needed tensor may be absent.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Need returns the stored tensors that a command reads. c is the checkpoint's config, nil if
// it cannot be read; all has the names that the index lists, without dtypes and shapes. A nil
// map stands for all of them.
type Need func(c *config.Config, all weights.Headers) (map[string]bool, error)

// names are the entries of an index as headers.
type names []weight

// Tensors yields the names.
func (n names) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for _, w := range n {
			if !yield(tensor.Info{Name: w.tensor}) {
				return
			}
		}
	}
}

// leaveOut takes files that are absent, and hold nothing that is needed, from the files to open.
func (s *scanner) leaveOut(need Need) error {
	if need == nil || s.inv.Index == nil || !slices.ContainsFunc(s.files, s.isAbsent) {
		return nil
	}
	wanted, err := need(s.inv.Config, names(s.inv.Index.weights))
	if err != nil || wanted == nil {
		return err
	}
	s.needed = map[string][]string{}
	for _, w := range s.inv.Index.weights {
		if wanted[w.tensor] {
			s.needed[w.file] = append(s.needed[w.file], w.tensor)
		}
	}
	var left []string
	s.files = slices.DeleteFunc(slices.Clone(s.files), func(file string) bool {
		unneeded := s.needed[file] == nil && s.isAbsent(file)
		if unneeded {
			left = append(left, file)
		}
		return unneeded
	})
	if left != nil {
		s.note(problem.Problem{File: s.index, Cause: fmt.Sprintf("not read: %d of its %s, the first is %s; nothing that is "+
			"needed is in them", len(left), text.Plural(len(s.inv.Index.Shards), "file"), text.Quote(left[0]))})
	}
	return nil
}

// isAbsent reports whether a weight file is not at hand: it is missing, a Git LFS pointer, or on a server.
func (s *scanner) isAbsent(file string) bool {
	if !s.dir.OnDisk() {
		return true
	}
	f, err := s.dir.Open(file)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	head := make([]byte, len(format.LFSPointer))
	_, err = io.ReadFull(f, head)
	return err == nil && string(head) == format.LFSPointer
}

// purpose says what a file that is not there would be read for.
func (s *scanner) purpose(file string) string {
	listed := 0
	for _, w := range s.inv.Index.weights {
		if w.file == file {
			listed++
		}
	}
	if s.needed == nil {
		return fmt.Sprintf("%s names it for %s", text.Quote(s.inv.Index.File), text.Plural(listed, "tensor"))
	}
	of := text.Plural(listed, "tensor")
	if n := len(s.needed[file]); n < listed {
		of = fmt.Sprintf("%d of its %s", n, of)
	}
	return fmt.Sprintf("needed for %s: %s", of, weights.PartsOf(s.needed[file]))
}

// unread lists the files of the index that were not read, with the names of their tensors.
func (s *scanner) unread() (files []FileInfo) {
	at := map[string]int{}
	for _, f := range s.inv.Files {
		at[f.Name] = -1
	}
	for _, w := range s.inv.Index.weights {
		i, known := at[w.file]
		if !known {
			i = len(files)
			at[w.file], files = i, append(files, FileInfo{Name: w.file})
		}
		if i >= 0 {
			files[i].Infos = append(files[i].Infos, tensor.Info{Name: w.tensor})
		}
	}
	return files
}
