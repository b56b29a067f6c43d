package checkpoint

import (
	"slices"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/convert/remote"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

// Inventory describes a checkpoint without reading its weights. Problems keep it from being
// opened; Notes do not, such as a wrong total_size or a file that no index lists.
type Inventory struct {
	Path      string            `json:"path"`             // as it was given; of a model of the hub with the commit
	Config    *config.Config    `json:"config,omitempty"` // nil if it cannot be read
	ConfigErr error             `json:"-"`                // why Config is nil; in Problems too
	Index     *index            `json:"index,omitempty"`  // nil if missing or unreadable
	Files     []FileInfo        `json:"files"`            // readable files, in reading order
	Problems  []problem.Problem `json:"problems"`         // what keeps the checkpoint from being opened
	Notes     []problem.Problem `json:"notes"`            // findings that keep no reader from opening it
	Unread    []FileInfo        `json:"-"`                // of ScanPart: names of files and of their tensors
}

// FileInfo describes one weight file.
type FileInfo struct {
	Name     string            `json:"name"`               // in the checkpoint's directory
	Size     int64             `json:"size"`               // bytes of the file
	Tensors  int               `json:"tensors"`            // how many it holds
	Bytes    int64             `json:"bytes"`              // of tensor data
	DTypes   []dtypeCount      `json:"dtypes"`             // in the order of their constants
	Metadata map[string]string `json:"metadata,omitempty"` // free-form texts of its header
	Infos    []tensor.Info     `json:"-"`                  // tensors in file order; nil in a Checkpoint
}

// dtypeCount counts the tensors and bytes of one dtype in a file.
type dtypeCount struct {
	DType   tensor.DType `json:"dtype"`   // as it is stored
	Tensors int          `json:"tensors"` // of that dtype
	Bytes   int64        `json:"bytes"`   // of their data
}

// scanner collects an inventory and keeps the weight files open.
type scanner struct {
	location
	inv    *Inventory
	opened []format.File       // as inv.Files
	where  map[string]int      // the first of the files that hold a tensor
	needed map[string][]string // by file the tensors that are needed; nil if all are

	assembly *assembly         // the files' content, if their format has a dialect
	withheld []problem.Problem // files that a server did not give: nothing is known of them
}

func (s *scanner) close() {
	for _, f := range s.opened {
		f.Close()
	}
}

func (s *scanner) problem(p ...problem.Problem) { s.inv.Problems = append(s.inv.Problems, p...) }

// unusable adds the problems of a file that cannot be used for err.
func (s *scanner) unusable(err error, problems []problem.Problem) {
	if remote.Withheld(err) {
		s.withheld = append(s.withheld, problems...)
	}
	s.problem(problems...)
}

func (s *scanner) note(p ...problem.Problem) { s.inv.Notes = append(s.inv.Notes, p...) }

func describe(name string, f format.File) FileInfo {
	stat := f.Stat()
	info := FileInfo{Name: name, Size: stat.Size, Tensors: stat.Tensors, Metadata: stat.Metadata,
		DTypes: []dtypeCount{}, Infos: slices.AppendSeq(make([]tensor.Info, 0, stat.Tensors), f.Tensors())}
	for _, t := range info.Infos {
		info.Bytes += t.Bytes()
		i := slices.IndexFunc(info.DTypes, func(c dtypeCount) bool { return c.DType == t.DType })
		if i < 0 {
			i = len(info.DTypes)
			info.DTypes = append(info.DTypes, dtypeCount{DType: t.DType})
		}
		info.DTypes[i].Tensors++
		info.DTypes[i].Bytes += t.Bytes()
	}
	slices.SortFunc(info.DTypes, func(a, b dtypeCount) int { return int(a.DType) - int(b.DType) })
	return info
}
