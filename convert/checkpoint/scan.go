package checkpoint

// Collecting an inventory: config, index and headers, and what contradicts what.

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// scan resolves the path and collects the inventory; need is nil for all weights.
func (o Opener) scan(path string, need Need) (*scanner, error) {
	loc, err := o.locate(path)
	if err != nil {
		return nil, err
	}
	s := &scanner{location: *loc, inv: &Inventory{Path: loc.path, Files: []FileInfo{}, Problems: []problem.Problem{},
		Notes: []problem.Problem{}}}
	if s.format.Dialect == nil {
		s.inv.Config, _, s.inv.ConfigErr = readConfig(s.dir, s.format.Config)
		if s.inv.ConfigErr != nil {
			s.unusable(s.inv.ConfigErr, problem.Of(s.format.Config, s.inv.ConfigErr))
		}
	}
	s.readIndex()
	names, err := s.dir.List("")
	if i := slices.IndexFunc(names, IsAdapter); err == nil && i >= 0 && !s.alone {
		s.note(problem.Problem{File: names[i], Cause: besideAdapter, Hint: adapterHint})
	}
	s.inv.Problems = append(s.inv.Problems, s.problems...)
	s.inv.Notes = append(s.inv.Notes, s.notes...)
	if err := s.leaveOut(need); err != nil {
		return nil, err
	}
	if len(s.withheld) == 0 {
		s.openFiles()
	}
	if len(s.withheld) > 0 {
		s.close()
		return nil, problem.In(s.inv.Path, s.withheld...)
	}
	s.indexTensors()
	if s.format.Dialect != nil {
		s.assemble()
	}
	if s.inv.Index != nil {
		s.checkIndex()
		s.checkStrays()
		if s.needed != nil {
			s.inv.Unread = s.unread()
		}
		s.inv.Index.weights = nil
	}
	return s, nil
}

// readIndex reads the index, if present, and takes the list of files from it. Without a
// usable index it lists all shards in the directory.
func (s *scanner) readIndex() {
	if s.index == "" {
		return
	}
	index, err := readIndex(s.dir, s.index, s.format)
	if c := s.inv.Config; err == nil && c != nil &&
		!slices.ContainsFunc(index.weights, func(w weight) bool { return weights.Implied(c, w.tensor) }) {
		err = fmt.Errorf("weight_map names no weight that %s implies; its %s begin with %s", s.format.Config,
			text.Plural(index.Tensors, "name"), text.Quote(index.weights[0].tensor))
	}
	if err != nil {
		s.unusable(err, problem.Of(s.index, err))
		s.files = s.weightFiles
		return
	}
	s.inv.Index = index
	s.files = index.Shards
}

// openFiles opens all weight files at once and describes each.
func (s *scanner) openFiles() {
	names := s.files
	opened := make([]format.File, len(names))
	errs := make([]error, len(names))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range names {
		g.Go(func() error {
			var data format.Data
			if data, errs[i] = s.dir.Data(name); errs[i] == nil {
				opened[i], errs[i] = s.format.Open(data)
			}
			return nil
		})
	}
	g.Wait()
	for i, f := range opened {
		if errs[i] != nil {
			problems := problem.Of(names[i], errs[i])
			switch { // an absent file: the problem says what needs it
			case s.inv.Index == nil:
			case !slices.Contains(s.weightFiles, names[i]):
				problems[0].Cause, problems[0].Hint = "missing, and "+s.purpose(names[i]), ""
				if s.dir.OnDisk() {
					problems[0].Hint = "download the file"
				}
			case s.needed != nil && s.isAbsent(names[i]):
				problems[0].Cause += ", and " + s.purpose(names[i])
			}
			s.unusable(errs[i], problems)
			continue
		}
		s.opened = append(s.opened, f)
		s.inv.Files = append(s.inv.Files, describe(names[i], f))
		for _, n := range f.Stat().Notes {
			s.note(problem.Problem{File: names[i], Cause: n})
		}
	}
}

// indexTensors finds out where each tensor is. One that two files of a checkpoint
// hold is a problem; files that do not belong together may share names.
func (s *scanner) indexTensors() {
	n := 0
	for _, f := range s.inv.Files {
		n += f.Tensors
	}
	s.where = make(map[string]int, n)
	for i, f := range s.inv.Files {
		for _, t := range f.Infos {
			first, twin := s.where[t.Name]
			if !twin {
				s.where[t.Name] = i
			} else if (s.inv.Index != nil || s.together) && s.format.Dialect == nil {
				s.problem(problem.Problem{File: f.Name, Tensor: t.Name, Cause: "is in " + text.Quote(s.inv.Files[first].Name) + " too"})
			}
		}
	}
}

// checkIndex compares the index with the files' tensors. An unreadable file has its own
// problem; its tensors are not reported.
func (s *scanner) checkIndex() {
	readable := map[string]int{}
	for i, f := range s.inv.Files {
		readable[f.Name] = i
	}
	listed := make(map[string]bool, len(s.inv.Index.weights))
	for _, w := range s.inv.Index.weights {
		listed[w.tensor] = true
		i, opened := readable[w.file]
		other, held := s.where[w.tensor]
		here := held && other == i
		if opened && held && !here { // it may be in several
			_, _, here = s.opened[i].Lookup(w.tensor)
		}
		if opened && !here {
			cause := "missing, though " + s.inv.Index.File + " puts it here"
			if held {
				cause += "; it is in " + text.Quote(s.inv.Files[other].Name)
			}
			s.problem(problem.Problem{File: w.file, Tensor: w.tensor, Cause: cause})
		} else if !opened && held && s.needed != nil {
			s.problem(problem.Problem{File: s.inv.Files[other].Name, Tensor: w.tensor,
				Cause: "is here, though " + s.inv.Index.File + " puts it in " + text.Quote(w.file)})
		}
	}
	sum := int64(0)
	for _, f := range s.inv.Files {
		sum += f.Bytes
		for _, t := range f.Infos {
			if !listed[t.Name] {
				s.problem(problem.Problem{File: f.Name, Tensor: t.Name, Cause: "not listed in " + s.inv.Index.File})
			}
		}
	}
	total := s.inv.Index.TotalSize
	number, err := strconv.ParseFloat(total, 64)
	switch {
	case len(s.inv.Files) != len(s.inv.Index.Shards):
	case total == "":
		s.note(problem.Problem{File: s.inv.Index.File, Cause: "metadata.total_size is missing",
			Hint: "some versions of transformers cannot load the checkpoint without it"})
	case total == strconv.FormatInt(sum, 10):
	case err == nil && number == float64(sum) && strings.ContainsAny(total, ".eE"): // some writers give a float
	default:
		s.note(problem.Problem{File: s.inv.Index.File,
			Cause: fmt.Sprintf("metadata.total_size is %s, but the tensors have %s", text.Quote(total), text.ExactBytes(sum))})
	}
}

// checkStrays looks for weight files that the index does not name: a problem if
// they belong to the same set of shards, a finding otherwise.
func (s *scanner) checkStrays() {
	families := map[string]bool{}
	for _, name := range s.inv.Index.Shards {
		if family, _, ok := shardFamily(name); ok {
			families[family] = true
		}
	}
	for _, name := range s.weightFiles {
		if slices.Contains(s.inv.Index.Shards, name) {
			continue
		}
		family, _, ok := shardFamily(name)
		if ok && families[family] {
			s.problem(problem.Problem{File: name, Cause: "a shard of this checkpoint that " + s.inv.Index.File + " does not name",
				Hint: "the index is of another version of the checkpoint"})
			continue
		}
		s.note(problem.Problem{File: name, Cause: "not read: " + s.inv.Index.File + " does not name it"})
	}
}

// assemble has the format assemble the tensors and the config from the files, if all files
// could be opened.
func (s *scanner) assemble() {
	if len(s.opened) < len(s.files) || len(s.files) == 0 || len(s.problems) > 0 {
		s.inv.ConfigErr = errors.New("the config is in the weight files, of which not all can be read")
		return
	}
	found, wrong := s.format.Dialect.Assemble(s.opened)
	s.problem(wrong...)
	if found == nil {
		s.inv.ConfigErr = errors.New("the weight files say no config")
		return
	}
	s.inv.Config, s.inv.ConfigErr = config.Parse(bytes.NewReader(found.Config))
	s.assembly = &assembly{found, make(map[string]int, len(found.Tensors))}
	for _, n := range found.Notes {
		s.note(problem.Problem{File: s.files[0], Cause: n})
	}
	for i := range s.inv.Files {
		s.inv.Files[i].Infos = nil
	}
	for i := range found.Tensors {
		x := &found.Tensors[i]
		s.assembly.byName[x.Name] = i
		f := &s.inv.Files[x.Parts[0].File]
		f.Infos = append(f.Infos, x.Info)
	}
	for i := range s.inv.Files {
		s.inv.Files[i].Tensors = len(s.inv.Files[i].Infos)
	}
}
