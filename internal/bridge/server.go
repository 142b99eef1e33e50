package bridge

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/alineod/alineod/internal/failpoint"
	"github.com/alineod/alineod/internal/harness"
)

const (
	socketName = "bridge.sock"
	journalDir = "journal"
	lockName   = "bridge.lock"
)

// Defaults of a ServerConfig.
const (
	// DefaultSegmentBytes is small enough that an agent whose records are
	// acknowledged keeps little on disk.
	DefaultSegmentBytes = 4 << 20
	DefaultJournalBytes = 64 << 20
	// DefaultStopGrace is what a harness gets between SIGINT and SIGTERM when
	// the bridge itself is told to end: a runtime's own patience is 10 s.
	DefaultStopGrace = 3 * time.Second
)

// ServerConfig says what a bridge serves. SandboxID, Dir and Harnesses are
// needed; of the rest, zero is a safe default.
type ServerConfig struct {
	SandboxID string
	// Dir holds bridge.sock, journal/ and the bridge's other files. It exists
	// and belongs to the daemon's user, with mode 0700; what the bridge makes
	// in it is given to that user.
	Dir string
	// Home of the harness; empty: the user's in /etc/passwd, else $HOME.
	Home string
	// User runs the harness: a name or uid, with :group where wanted; empty:
	// the bridge's own.
	User string
	// Workdir is where the harness starts, made if missing; a relative one is
	// below Home, empty is Home.
	Workdir string
	// Self is the path of this program in the sandbox, told to the harnesses.
	Self string
	// Harnesses finds a harness by name: harness.ErrUnknown for no such.
	Harnesses func(name string) (harness.Harness, error)
	// Pack writes an archive of the home, Unpack makes the home what an
	// archive holds. Nil: such requests are refused.
	Pack   func(ctx context.Context, w io.Writer, req PackRequest) (ArchiveStats, error)
	Unpack func(ctx context.Context, r io.Reader, req UnpackRequest) (ArchiveStats, error)

	Log   *zap.Logger
	Clock clockwork.Clock

	SegmentBytes int64 // of one file of the journal, about
	JournalBytes int64 // of the whole journal; the oldest go first
	MaxLine      int   // of the harness's output; at most the constant
	StopGrace    time.Duration
	// InProcess: the server shares its process with other things, as in a
	// test. It changes nothing process-wide then, adopts no orphans, and of
	// the processes a harness left it finds only those that bear its marks.
	InProcess bool
}

func (c *ServerConfig) setDefaults() error {
	if c.SandboxID == "" || c.Dir == "" || c.Harnesses == nil {
		return errors.New("bridge: sandbox id, directory and harnesses are needed")
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
	if c.SegmentBytes <= 0 {
		c.SegmentBytes = DefaultSegmentBytes
	}
	if c.JournalBytes <= 0 {
		c.JournalBytes = DefaultJournalBytes
	}
	if c.MaxLine <= 0 || c.MaxLine > MaxLine {
		c.MaxLine = MaxLine
	}
	if c.StopGrace <= 0 {
		c.StopGrace = DefaultStopGrace
	}
	return nil
}

// server is one bridge. What a harness says and is told goes through one
// goroutine, the keeper (keeper.go); the connections ask it.
type server struct {
	cfg     ServerConfig
	log     *zap.Logger
	epoch   string
	dir     *os.File
	own     owner
	journal *journal
	turns   *turnLog
	lineage lineage
	acct    account
	home    string
	workdir string

	keeper keeper
	// lifecycle holds one token: starting, stopping and replacing the home
	// exclude each other.
	lifecycle chan struct{}
	// starting keeps the collector of orphans from a child that is being made.
	starting sync.Mutex

	conns connTable
	door  door
	wg    sync.WaitGroup
}

// Serve is the bridge proper: it serves daemons on Dir/bridge.sock until ctx
// ends, then stops the harness gracefully and returns nil. Only one bridge
// serves a directory at a time.
func Serve(ctx context.Context, cfg ServerConfig) error {
	if err := cfg.setDefaults(); err != nil {
		return err
	}
	if !cfg.InProcess {
		// Caught, not ignored: an ignored signal would stay ignored in the
		// harness. A broken standard error or a lost terminal ends no bridge.
		hold := make(chan os.Signal, 1)
		signal.Notify(hold, syscall.SIGHUP, syscall.SIGPIPE)
		defer signal.Stop(hold)
	}
	s, err := newServer(cfg)
	if err != nil {
		return fmt.Errorf("starting the bridge of %s: %w", cfg.SandboxID, err)
	}
	defer s.closeFiles()
	listener, err := s.listen()
	if err != nil {
		return fmt.Errorf("starting the bridge of %s: %w", cfg.SandboxID, err)
	}
	return s.run(ctx, listener)
}

func newServer(cfg ServerConfig) (*server, error) {
	s := &server{cfg: cfg, log: cfg.Log, lifecycle: make(chan struct{}, 1)}
	if err := s.boot(); err != nil {
		s.closeFiles()
		return nil, err
	}
	return s, nil
}

// boot takes the directory and begins a new epoch of its journal.
func (s *server) boot() (err error) {
	cfg := s.cfg
	if s.dir, err = openDir(cfg.Dir); err != nil {
		return err
	}
	if s.own, err = ownerOf(s.dir); err != nil {
		return err
	}
	if err := s.lock(); err != nil {
		return err
	}
	if err := s.findHome(); err != nil {
		return err
	}
	if err := s.openJournal(); err != nil {
		return err
	}
	var epoch [8]byte
	rand.Read(epoch[:])
	s.epoch = hex.EncodeToString(epoch[:])
	s.lineage = newLineage(cfg.SandboxID, cfg.Clock, cfg.InProcess)
	s.keeper.init(s)
	pos, err := s.journal.append(Record{Epoch: s.epoch, TS: cfg.Clock.Now().UnixMilli(), Kind: KindBoot, PID: os.Getpid()})
	if err == nil {
		err = s.journal.sync(pos)
	}
	if err != nil {
		return err
	}
	failpoint.Hit("bridge.boot")
	return nil
}

// lock makes sure that no other bridge serves the directory. The kernel lets
// go of it with the process, however that ends.
func (s *server) lock() error {
	f, err := openAt(s.dir, lockName, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(s.own.give(f, 0o600), unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)); err != nil {
		return errors.Join(fmt.Errorf("another bridge serves %s: %w", s.cfg.Dir, err), f.Close())
	}
	s.conns.lock = f
	return nil
}

func (s *server) findHome() (err error) {
	if s.acct, err = lookupAccount("/", s.cfg.User); err != nil {
		return err
	}
	s.home = s.cfg.Home
	if s.home == "" {
		s.home = s.acct.home
	}
	if s.home == "" || s.cfg.Home == "" && s.cfg.User == "" && os.Getenv("HOME") != "" {
		s.home = os.Getenv("HOME")
	}
	if s.home == "" {
		s.home = "/"
	}
	s.workdir = s.cfg.Workdir
	if !filepath.IsAbs(s.workdir) {
		s.workdir = filepath.Join(s.home, s.workdir)
	}
	return nil
}

func (s *server) openJournal() error {
	fd := int(s.dir.Fd())
	if err := unix.Mkdirat(fd, journalDir, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("making the journal: %w", err)
	}
	dir, err := openDir(filepath.Join("/proc/self/fd", fmt.Sprint(fd), journalDir))
	if err != nil {
		return err
	}
	if err := errors.Join(s.own.give(dir, 0o700), s.dir.Sync()); err != nil {
		return errors.Join(err, dir.Close())
	}
	if s.turns, err = openTurnLog(s.dir, s.own); err != nil {
		return errors.Join(err, dir.Close())
	}
	s.journal, err = openJournal(dir, s.own, s.cfg.SegmentBytes, s.cfg.JournalBytes, s.turns.visit)
	if err != nil {
		return errors.Join(err, dir.Close())
	}
	s.journal.beforeDrop = s.turns.save
	return nil
}

// listen replaces a socket that a dead bridge left, which would refuse both
// its clients and its successor. The path goes through the directory's
// descriptor: a socket's path is limited to 108 bytes.
func (s *server) listen() (*net.UnixListener, error) {
	fd := int(s.dir.Fd())
	if err := unix.Unlinkat(fd, socketName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("removing an old socket: %w", err)
	}
	path := fmt.Sprintf("/proc/self/fd/%d/%s", fd, socketName)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := s.own.giveAt(s.dir, socketName, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (s *server) run(ctx context.Context, listener *net.UnixListener) error {
	// Work outlives ctx until the harness is stopped.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	if !s.cfg.InProcess {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			s.log.Warn("cannot adopt what the harness leaves", zap.Error(err))
		}
		s.wg.Go(func() { s.collectOrphans(work) })
	}
	s.wg.Go(func() { s.keeper.run(work) })
	s.wg.Go(func() { s.accept(work, listener) })
	s.openDoor()
	s.log.Info("bridge serves", zap.String("sandbox", s.cfg.SandboxID), zap.String("epoch", s.epoch))

	<-ctx.Done()
	_ = listener.Close()
	s.door.close()
	err := s.shutDown(work)
	s.conns.closeAll(fmt.Errorf("bridge ends: %w", ErrClosed))
	stopWork()
	s.wg.Wait()
	return err
}

// shutDown stops the harness for good. A journal on a full disk holds its last
// lines back, and the bridge does not wait for that for ever.
func (s *server) shutDown(ctx context.Context) error {
	const slack = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StopGrace+termGrace+slack)
	defer cancel()
	if _, err := s.lockLifecycle(ctx); err != nil { // never unlocked
		return fmt.Errorf("stopping the harness: %w", err)
	}
	if err := s.stopLocked(ctx, s.cfg.StopGrace); err != nil {
		return fmt.Errorf("stopping the harness: %w", err)
	}
	return nil
}

func (s *server) closeFiles() {
	if s.journal != nil {
		if err := s.journal.close(); err != nil {
			s.log.Error("closing the journal", zap.Error(err))
		}
		_ = s.journal.dir.Close()
	}
	if s.turns != nil {
		_ = s.turns.file.Close()
	}
	for _, f := range []*os.File{s.conns.lock, s.dir} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// accept serves connections until the listener closes.
func (s *server) accept(ctx context.Context, l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors: the ones in use come back.
			s.log.Warn("accepting a connection", zap.Error(err))
			select {
			case <-s.cfg.Clock.After(100 * time.Millisecond):
				continue
			case <-ctx.Done():
				return
			}
		}
		s.wg.Go(func() { s.serveConn(ctx, c) })
	}
}

// collectOrphans collects what died of the harness's descendants that were
// left to this process.
func (s *server) collectOrphans(ctx context.Context) {
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(died)
	for {
		select {
		case <-died:
			s.starting.Lock()
			reapOrphans(int(s.keeper.pid.Load()))
			s.starting.Unlock()
		case <-ctx.Done():
			return
		}
	}
}
