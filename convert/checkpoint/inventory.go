package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/errgroup"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/convert/remote"
	"dsmoe/convert/source"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Inventory describes a checkpoint without reading its weights. Problems keep it from being
// opened; Notes do not, such as a wrong total_size or a file that no index lists.
type Inventory struct {
	Path      string         `json:"path"`             // as it was given; of a model of the hub with the commit
	Config    *config.Config `json:"config,omitempty"` // nil if it cannot be read
	ConfigErr error          `json:"-"`                // why Config is nil; in Problems too
	Index     *Index         `json:"index,omitempty"`  // nil if missing or unreadable
	Files     []FileInfo     `json:"files"`            // readable files, in reading order
	Problems  []Problem      `json:"problems"`         // what keeps the checkpoint from being opened
	Notes     []Problem      `json:"notes"`            // findings that keep no reader from opening it
	Unread    []FileInfo     `json:"-"`                // of ScanPart: names of files and of their tensors
}

// FileInfo describes one weight file.
type FileInfo struct {
	Name     string            `json:"name"`               // in the checkpoint's directory
	Size     int64             `json:"size"`               // bytes of the file
	Tensors  int               `json:"tensors"`            // how many it holds
	Bytes    int64             `json:"bytes"`              // of tensor data
	DTypes   []DTypeCount      `json:"dtypes"`             // in the order of their constants
	Metadata map[string]string `json:"metadata,omitempty"` // free-form texts of its header
	Infos    []tensor.Info     `json:"-"`                  // tensors in file order; nil in a Checkpoint
}

// DTypeCount counts the tensors and bytes of one dtype in a file.
type DTypeCount struct {
	DType   tensor.DType `json:"dtype"`   // as it is stored
	Tensors int          `json:"tensors"` // of that dtype
	Bytes   int64        `json:"bytes"`   // of their data
}

// Scan reads the config, the index and every header of the checkpoint at path (see Open for
// the forms of path) and collects all problems. It returns an error, of type *Error, only if
// path is not a checkpoint at all.
func Scan(path string) (*Inventory, error) { return ScanPart(path, nil) }

// scanner collects an inventory and keeps the weight files open.
type scanner struct {
	location
	inv    *Inventory
	opened []format.File       // as inv.Files
	where  map[string]int      // the first of the files that hold a tensor
	needed map[string][]string // by file the tensors that are needed; nil if all are

	assembly *assembly // the files' content, if their format has a dialect
	withheld []Problem // files that a server did not give: nothing is known of them
}

func scan(path string, need Need) (*scanner, error) {
	loc, err := locate(path)
	if err != nil {
		return nil, err
	}
	s := &scanner{location: *loc, inv: &Inventory{Path: loc.path, Files: []FileInfo{}, Problems: []Problem{},
		Notes: []Problem{}}}
	if s.format.Dialect == nil {
		s.readConfig()
	}
	s.readIndex()
	s.noteAdapter()
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
		return nil, &Error{Path: s.inv.Path, Problems: s.withheld}
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

func (s *scanner) close() {
	for _, f := range s.opened {
		f.Close()
	}
}

func (s *scanner) problem(p ...Problem) { s.inv.Problems = append(s.inv.Problems, p...) }

// unusable adds the problems of a file that cannot be used for err.
func (s *scanner) unusable(err error, problems []Problem) {
	if remote.Withheld(err) {
		s.withheld = append(s.withheld, problems...)
	}
	s.problem(problems...)
}

// noteAdapter notes an adapter in the checkpoint's directory.
func (s *scanner) noteAdapter() {
	names, err := s.dir.List("")
	if i := slices.IndexFunc(names, IsAdapter); err == nil && i >= 0 && !s.alone {
		s.note(Problem{File: names[i], Cause: besideAdapter, Hint: adapterHint})
	}
}

func (s *scanner) note(p ...Problem) { s.inv.Notes = append(s.inv.Notes, p...) }

func (s *scanner) readConfig() {
	s.inv.Config, _, s.inv.ConfigErr = readConfig(s.dir, ConfigName)
	if s.inv.ConfigErr != nil {
		s.unusable(s.inv.ConfigErr, ProblemsOf(ConfigName, s.inv.ConfigErr))
	}
}

// ReadConfig reads the config.json at path, and returns its text too. Its error is a
// *format.Error if the file cannot be read, and the *config.Error about its fields if it
// can, which does not name the file.
func ReadConfig(path string) (*config.Config, []byte, error) {
	return computable(readConfig(source.Disk(filepath.Dir(path)), filepath.Base(path)))
}

// computable refuses the config of a model that nothing is computed with.
func computable(c *config.Config, document []byte, err error) (*config.Config, []byte, error) {
	if err == nil {
		err = c.Computable()
	}
	return c, document, err
}

func readConfig(dir source.Dir, name string) (*config.Config, []byte, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	var document bytes.Buffer
	c, err := config.Parse(io.TeeReader(f, &document))
	if substitute := format.Substitute(dir.Path(name), document.Bytes()); substitute != nil {
		return nil, nil, substitute
	}
	var fields *config.Error
	if err != nil && !errors.As(err, &fields) {
		err = format.SystemError(dir.Path(name), "", err)
	}
	if err == nil && name == ConfigName && c.Quantization.Method == "" {
		c, err = modelOpt(dir, c)
	}
	return c, document.Bytes(), err
}

// ModelOptName is the file that ModelOpt's older checkpoints have in place of quantization_config.
const ModelOptName = "hf_quant_config.json"

// modelOpt returns c with the quantization that ModelOptName in dir announces, if there is such a file.
func modelOpt(dir source.Dir, c *config.Config) (*config.Config, error) {
	f, err := dir.Open(ModelOptName)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	var document struct {
		Quantization map[string]jsontext.Value `json:"quantization"`
	}
	if err := json.UnmarshalRead(io.LimitReader(f, config.MaxSize), &document); err != nil {
		return nil, &format.Error{File: dir.Path(ConfigName), Cause: fmt.Sprintf("%s beside it: %v", ModelOptName, err)}
	}
	q := document.Quantization
	if len(q["quant_algo"]) == 0 || q["quant_algo"].Kind() == 'n' { // of keys and values alone
		return c, nil
	}
	q["quant_method"] = jsontext.Value(`"modelopt"`)
	text, _ := json.Marshal(q, json.Deterministic(true)) // it was read
	quantised, err := c.Override(map[string]jsontext.Value{"quantization_config": text})
	if err != nil {
		return nil, &format.Error{File: dir.Path(ConfigName),
			Cause: fmt.Sprintf("with the quantization of %s: %v", ModelOptName, err)}
	}
	return quantised, nil
}

// readIndex reads the index, if present, and takes the list of files from it. Without a
// usable index it lists all shards in the directory.
func (s *scanner) readIndex() {
	if s.index == "" {
		return
	}
	index, err := readIndex(s.dir, s.index, s.format)
	if err == nil && s.inv.Config != nil {
		err = index.fits(s.inv.Config)
	}
	if err != nil {
		s.unusable(err, ProblemsOf(s.index, err))
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
			opened[i], errs[i] = s.openFile(name)
			return nil
		})
	}
	g.Wait()
	for i, f := range opened {
		if errs[i] != nil {
			s.unusable(errs[i], s.explain(names[i], errs[i]))
			continue
		}
		s.opened = append(s.opened, f)
		s.inv.Files = append(s.inv.Files, describe(names[i], f))
		for _, n := range f.Stat().Notes {
			s.note(Problem{File: names[i], Cause: n})
		}
	}
}

// openFile opens a weight file.
func (s *scanner) openFile(name string) (format.File, error) {
	d, err := s.dir.Data(name)
	if err != nil {
		return nil, err
	}
	return s.format.Open(d)
}

// explain turns the error of an unreadable file into problems, which say what a missing file
// would be read for.
func (s *scanner) explain(name string, err error) []Problem {
	problems := ProblemsOf(name, err)
	switch {
	case s.inv.Index == nil:
	case !slices.Contains(s.weightFiles, name):
		problems[0].Cause, problems[0].Hint = "missing, and "+s.purpose(name), ""
		if s.dir.OnDisk() {
			problems[0].Hint = "download the file"
		}
	case s.needed != nil && s.isAbsent(name):
		problems[0].Cause += ", and " + s.purpose(name)
	}
	return problems
}

func describe(name string, f format.File) FileInfo {
	stat := f.Stat()
	info := FileInfo{Name: name, Size: stat.Size, Tensors: stat.Tensors, Metadata: stat.Metadata,
		DTypes: []DTypeCount{}, Infos: slices.AppendSeq(make([]tensor.Info, 0, stat.Tensors), f.Tensors())}
	for _, t := range info.Infos {
		info.Bytes += t.Bytes()
		i := slices.IndexFunc(info.DTypes, func(c DTypeCount) bool { return c.DType == t.DType })
		if i < 0 {
			i = len(info.DTypes)
			info.DTypes = append(info.DTypes, DTypeCount{DType: t.DType})
		}
		info.DTypes[i].Tensors++
		info.DTypes[i].Bytes += t.Bytes()
	}
	slices.SortFunc(info.DTypes, func(a, b DTypeCount) int { return int(a.DType) - int(b.DType) })
	return info
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
				s.problem(Problem{File: f.Name, Tensor: t.Name, Cause: "is in " + text.Quote(s.inv.Files[first].Name) + " too"})
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
		if i, ok := readable[w.file]; ok && !s.holds(i, w.tensor) {
			s.problem(Problem{File: w.file, Tensor: w.tensor,
				Cause: "missing, though " + s.inv.Index.File + " puts it here" + s.elsewhere(w.tensor)})
		} else if other, held := s.where[w.tensor]; !ok && held && s.needed != nil {
			s.problem(Problem{File: s.inv.Files[other].Name, Tensor: w.tensor,
				Cause: "is here, though " + s.inv.Index.File + " puts it in " + text.Quote(w.file)})
		}
	}
	sum := int64(0)
	for _, f := range s.inv.Files {
		sum += f.Bytes
		for _, t := range f.Infos {
			if !listed[t.Name] {
				s.problem(Problem{File: f.Name, Tensor: t.Name, Cause: "not listed in " + s.inv.Index.File})
			}
		}
	}
	if len(s.inv.Files) == len(s.inv.Index.Shards) {
		s.note(s.inv.Index.totalSizeNote(sum)...)
	}
}

// holds reports whether file i holds the tensor.
func (s *scanner) holds(i int, name string) bool {
	if first, ok := s.where[name]; !ok || first == i {
		return ok
	}
	_, _, ok := s.opened[i].Lookup(name)
	return ok
}

func (s *scanner) elsewhere(name string) string {
	if i, ok := s.where[name]; ok {
		return "; it is in " + text.Quote(s.inv.Files[i].Name)
	}
	return ""
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
			s.problem(Problem{File: name, Cause: "a shard of this checkpoint that " + s.inv.Index.File + " does not name",
				Hint: "the index is of another version of the checkpoint"})
			continue
		}
		s.note(Problem{File: name, Cause: "not read: " + s.inv.Index.File + " does not name it"})
	}
}
