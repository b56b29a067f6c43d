package safetensors

// Files that are not safetensors files: common mistakes of users, each with its name.

import (
	"bytes"
	"fmt"
	"io"

	"dsmoe/convert/format"
	"dsmoe/text/problem"
)

const hintDownload = "the download did not finish: fetch the file again"

// lookalikes are the beginnings of files that are found in place of weights.
// The first that matches counts.
var lookalikes = []struct{ magic, cause, hint string }{
	{format.LFSPointer, format.LFSCause, format.LFSHint},
	{"version https://hawser.github.com/spec/", format.LFSCause, format.LFSHint},
	{"GGUF", "is a GGUF file, not safetensors", "give it the extension .gguf"},
	{"FUGG", "is a big-endian GGUF file, not safetensors", "convert from the original safetensors checkpoint"},
	{"lmgg", "is a GGML file, not safetensors", ""},
	{"tjgg", "is a GGML file, not safetensors", ""},
	{"PK\x03\x04", "is a zip archive, such as torch.save writes (.bin, .pt), not safetensors",
		"save the model with safe_serialization=True"},
	{"\x80\x02", "is a Python pickle, not safetensors", "save the model with safe_serialization=True"},
	{"\x80\x03", "is a Python pickle, not safetensors", "save the model with safe_serialization=True"},
	{"\x80\x04", "is a Python pickle, not safetensors", "save the model with safe_serialization=True"},
	{"\x80\x05", "is a Python pickle, not safetensors", "save the model with safe_serialization=True"},
	{"\x1f\x8b", "is a gzip file, not safetensors", "decompress it first"},
	{"\x28\xb5\x2f\xfd", "is a zstd file, not safetensors", "decompress it first"},
	{"\x89HDF\r\n", "is an HDF5 file, not safetensors", ""},
	{"\x93NUMPY", "is a NumPy file, not safetensors", ""},
	{"{", "is a JSON text, not safetensors",
		"an index or a config has the name of a weight file, or the download got an error message"},
}

// sniff returns the error that names the kind of a file that begins with no header length;
// nil for an unknown kind. It reads at most 4 KiB.
func sniff(r io.ReaderAt, size int64, file string) error {
	head := make([]byte, min(size, 4096))
	n, err := r.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return problem.System(file, "first bytes", err)
	}
	head = head[:n]
	if len(bytes.Trim(head, "\x00")) == 0 {
		return problem.New(file, fmt.Sprintf("not a safetensors file: its first %d bytes are zero", n), hintDownload)
	}
	trimmed := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n")
	for _, l := range lookalikes {
		if bytes.HasPrefix(head, []byte(l.magic)) || bytes.HasPrefix(trimmed, []byte(l.magic)) {
			return problem.New(file, l.cause, l.hint)
		}
	}
	return format.Substitute(file, head)
}
