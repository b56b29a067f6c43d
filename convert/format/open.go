package format

import (
	"bytes"
	"os"
	"path/filepath"

	"dsmoe/text"
	"dsmoe/text/problem"
)

// LFSPointer is the beginning of a Git LFS pointer, which stands in a Git repository for a
// file that was not downloaded.
const LFSPointer = "version https://git-lfs.github.com/spec/"

// The cause and the hint of the Error for such a file.
const (
	LFSCause = "is a Git LFS pointer: the weights were not downloaded"
	LFSHint  = "run `git lfs pull` in the checkpoint's repository"
)

// substitutes are the beginnings of what a download leaves in place of any file.
var substitutes = []struct{ magic, cause, hint string }{
	{LFSPointer, "is a Git LFS pointer: the file was not downloaded", LFSHint},
	{"<!doctype html", "is an HTML page", "the download got an error or login page: fetch the file again"},
	{"<html", "is an HTML page", "the download got an error or login page: fetch the file again"},
	{"<?xml", "is an XML document", "the download got an error page: fetch the file again"},
}

// Substitute returns the Error, naming file, for what a download left in place of a file that begins with head; nil
// for anything else.
func Substitute(file string, head []byte) error {
	head = bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n")
	for _, s := range substitutes {
		if len(head) >= len(s.magic) && bytes.EqualFold(head[:len(s.magic)], []byte(s.magic)) {
			return problem.New(file, s.cause, s.hint)
		}
	}
	return nil
}

// OpenRegular opens a regular file, or a link to one, for reading. Anything else
// (a FIFO, a device, a directory) is refused before it is opened, because opening
// or reading it may never end. A dangling link is named with its target. It returns
// the size too; errors are of type *problem.Error.
func OpenRegular(path string) (*os.File, int64, error) {
	stat, err := os.Stat(path)
	if target, lerr := os.Readlink(path); lerr == nil && os.IsNotExist(err) {
		return nil, 0, problem.New(path, "is a link to "+text.Quote(filepath.ToSlash(target))+", which does not exist",
			"a Hugging Face cache keeps the data in blobs/ beside snapshots/: copy it with `cp -L`, or download again")
	}
	if err != nil {
		return nil, 0, problem.System(path, "", err)
	}
	if !stat.Mode().IsRegular() {
		return nil, 0, problem.New(path, "is "+modeName(stat.Mode())+", not a regular file", "")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, problem.System(path, "", err)
	}
	stat, err = f.Stat()
	switch {
	case err != nil:
		err = problem.System(path, "", err)
	case !stat.Mode().IsRegular():
		err = problem.New(path, "changed while it was opened", "")
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, stat.Size(), nil
}

func modeName(m os.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&os.ModeNamedPipe != 0:
		return "a FIFO"
	case m&os.ModeSocket != 0:
		return "a socket"
	case m&os.ModeDevice != 0:
		return "a device"
	}
	return "a special file"
}
