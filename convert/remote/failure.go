package remote

// Why requests fail, and how messages say it.

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"dsmoe/text"
	"dsmoe/text/problem"
)

// failure is why a request has no answer.
type failure struct {
	cause string
	hint  string
	is    error         // fs.ErrNotExist, errWhole or nil
	final bool          // the request need not be repeated
	code  int           // the answer's status; 0 without an answer
	wait  time.Duration // that the server asks for; -1 if it does not
}

// Error returns the cause.
func (f *failure) Error() string { return f.cause }

// Unwrap returns fs.ErrNotExist for a missing file, or errWhole.
func (f *failure) Unwrap() error { return f.is }

// Withheld reports whether err says that a server has a file, or may have it, and did not give it.
func Withheld(err error) bool {
	var f *failure
	return errors.Is(err, context.Canceled) || errors.As(err, &f) && f.is == nil
}

func final(cause string) *failure { return &failure{cause: cause, final: true} }

// about is an error about a file, of type *problem.Error.
func about(path string, err error) error {
	if err == nil {
		return nil
	}
	var known *problem.Error
	if errors.As(err, &known) {
		return err
	}
	bad := problem.System(path, "", err)
	var f *failure
	if errors.As(err, &f) {
		bad.Problems[0].Hint = f.hint
	}
	return bad
}

// withoutSecrets cuts users and queries off the URLs in a message.
func withoutSecrets(message string) string {
	words := strings.Fields(message)
	for i, w := range words {
		if strings.Contains(w, "://") {
			words[i] = Name(w)
		}
	}
	return strings.Join(words, " ")
}

// explainStatus is the failure of a web server's answer.
func explainStatus(resp *http.Response) *failure {
	f := &failure{cause: "the server answers " + text.Quote(resp.Status), wait: -1}
	switch resp.StatusCode {
	case http.StatusNotFound, http.StatusGone:
		f.cause, f.is = "no such file on the server", fs.ErrNotExist
	case http.StatusUnauthorized, http.StatusForbidden:
		f.hint = "the server wants a login, which dsmoe does not have; download the files with a program that has it"
	case http.StatusTooManyRequests:
		f.hint = "the server limits the number of requests; try again later"
	}
	return f
}

// Name returns a URL without the parts that may be secret: its user and its query.
func Name(path string) string {
	path, _, _ = strings.Cut(path, "?")
	scheme, rest, _ := strings.Cut(path, "://")
	host, below, slash := strings.Cut(rest, "/")
	if at := strings.LastIndex(host, "@"); at >= 0 && scheme != "hf" {
		host = host[at+1:]
	}
	if slash {
		host += "/"
	}
	return scheme + "://" + host + below
}

func missing() *failure {
	return &failure{cause: "no such file on the server", is: fs.ErrNotExist, final: true}
}
